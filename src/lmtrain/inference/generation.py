"""One requested text, and its progress.

A text with tools goes on behind their results: the tokens of these are forced, and read as a prompt's are.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, final

from lmtrain.errors import ConfigurationError
from lmtrain.inference.blocks import BlockTable
from lmtrain.inference.sampling_settings import Sampling
from lmtrain.inference.text_stream import HeldCall, TextStream
from lmtrain.tokenizers.chat_styles import CallWords
from lmtrain.tokenizers.conversation import ToolCall

FinishReason = Literal["stop", "length", "cancelled"]


@final
@dataclass(frozen=True)
class ToolResult:
    """A call of the model's, and the text of its result."""

    call: ToolCall
    result: str


class ToolUse(Protocol):
    """Tools within an answer: calls between the two `call_tokens`, or else as `call_words`; `turn_end` behind them."""

    @property
    def call_tokens(self) -> tuple[int, int] | None: ...  # noqa: D102
    @property
    def call_words(self) -> CallWords | None: ...  # noqa: D102
    @property
    def turn_end(self) -> int: ...  # noqa: D102

    def answer(self, turn: Sequence[int]) -> tuple[Sequence[ToolResult], Sequence[int]]:
        """Return the results of a turn's calls, and the ids forced by them; none of either for a turn without."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt to go on with, of token ids, at most `num_new_tokens` of them.

    `end_ids` end the text and are no part of it, as `stops` do. `seed` None draws anew each time; `index` tells the
    texts of one request apart. `num_likeliest` None reports no log-probabilities. `client` takes turns with the others
    in the queue. `slides` goes on past the model's context with the newest tokens alone, each read again. `tools`
    answer the calls of a turn; without them the turn ends the text.
    Raises: ConfigurationError for a prompt without tokens, or fewer new tokens than one.
    """

    prompt: Sequence[int]
    num_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    end_ids: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    seed: int | None = None
    index: int = 0
    num_likeliest: int | None = None
    client: str = ""
    slides: bool = False
    tools: ToolUse | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ConfigurationError("prompt='' has no tokens; nearest valid: the end-of-text token alone.")
        if self.num_new_tokens < 1:
            raise ConfigurationError(f"num_new_tokens={self.num_new_tokens} is below 1; nearest valid: 1.")


@final
@dataclass(frozen=True)
class TokenScore:
    """A token's log-probability in nats, and those of the likeliest ones at its place."""

    token: int
    log_probability: float
    likeliest: Sequence[tuple[int, float]]


@final
@dataclass(frozen=True)
class Delta:
    """A step's addition to a text, and its tools' results; `finish_reason` None while it goes on."""

    generation: "Generation"
    text: str
    token: int | None = None
    score: TokenScore | None = None
    finish_reason: FinishReason | None = None
    results: Sequence[ToolResult] = ()


@final
@dataclass(frozen=True)
class ToolTurn:
    """A turn of an answer ending in calls: its words, and the calls with their results."""

    text: str
    results: Sequence[ToolResult]


@final
class Generation:
    """A request's text: its tokens, the cached ones' blocks, and the words written so far."""

    def __init__(self, request: Request, *, pieces: Sequence[bytes]) -> None:
        self.request = request
        self.tokens = [*request.prompt]
        self.table = BlockTable()
        self.num_cached = 0
        self.num_prefix_tokens = 0
        self.begins_at = 0  # the token at position 0: later ones once a text slides
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.scores: list[TokenScore] = []
        self.tool_turns: list[ToolTurn] = []
        self._turn_start, self._turn_text, self._is_call = len(self.tokens), 0, False
        self._stream = TextStream(pieces, stops=request.stops)
        self._words = HeldCall(None if request.tools is None else request.tools.call_words)
        seed = None if request.seed is None else f"{request.seed}/{request.index}"  # a text's hash seeds alike anywhere
        self._random = random.Random(seed)

    @property
    def last_words(self) -> str:
        """Return the text behind the last results of tools: all of it without any."""
        return self.text[self._turn_text :]

    @property
    def new_tokens(self) -> list[int]:
        """Return the written tokens, forced ones and an ending one included."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def num_pending(self) -> int:
        """Return how many tokens are to be read before the next one is chosen."""
        return len(self.tokens) - self.begins_at - self.num_cached

    @property
    def cached_tokens(self) -> list[int]:
        """Return the cached tokens, from position 0."""
        return self.tokens[self.begins_at : self.begins_at + self.num_cached]

    def draw(self) -> float:
        """Return the next number in [0, 1) of this text's own."""
        return self._random.random()

    def add(self, token: int, score: TokenScore | None, *, most_tokens: int | None) -> Delta:
        """Append a token and return the new certain text; more than `most_tokens` to read end it as its length does."""
        self.tokens.append(token)
        if score is not None:
            self.scores.append(score)
        text = self._text_of(token)
        results = self._use_tools(token)
        is_end = token in self.request.end_ids and not results
        is_full = most_tokens is not None and len(self.tokens) - self.begins_at > most_tokens
        if is_end or self._stream.is_stopped:
            self.finish_reason = "stop"
        elif is_full or len(self.new_tokens) >= self.request.num_new_tokens:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            text += self._words.add(self._stream.finish()) + self._words.release()
            self.finish_reason = "stop" if self._stream.is_stopped else self.finish_reason
        self.text += text
        return Delta(self, text, token, score, self.finish_reason, results)

    def _text_of(self, token: int) -> str:
        """Return the text made certain by a token: none for an end, or inside a call."""
        edges = None if self.request.tools is None else self.request.tools.call_tokens
        if edges is not None and token in edges:
            self._is_call = token == edges[0]
        return "" if token in self.request.end_ids or self._is_call else self._words.add(self._stream.add(token))

    def _use_tools(self, token: int) -> Sequence[ToolResult]:
        """Answer the calls of an ended turn, and let the text go on behind the results."""
        tools = self.request.tools
        if tools is None or token != tools.turn_end or self._stream.is_stopped:
            return ()
        results, forced = tools.answer(self.tokens[self._turn_start :])
        if results:
            self._words.drop()
            self.tokens += forced
            self.tool_turns.append(ToolTurn(self.text[self._turn_text :].rstrip("\n"), results))
            self._turn_start, self._turn_text, self._is_call = len(self.tokens), len(self.text), False
        return results
