"""A requested text and its progress: tokens to text as they come, stop strings, and calls of tools.

Text comes out in whole characters and without any part of a stop string, however tokens cut it. A text with tools goes
on behind their results: the tokens of these are forced, and read as a prompt's are.
"""

import codecs
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, final

from lmtrain.errors import ConfigurationError
from lmtrain.inference.sampling import Sampling
from lmtrain.tokenizers.chat import CallWords
from lmtrain.tokenizers.conversation import ToolCall

FinishReason = Literal["stop", "length", "cancelled"]


@final
@dataclass(frozen=True)
class ToolResult:
    """A call by the model, and the text of its result."""

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
        """Return the results of a turn's calls, and the ids forced by them; both empty for a turn without calls."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt of token ids to continue by at most `num_new_tokens`.

    `end_ids` and `stops` end the text and are not part of it. `seed` None draws differently each time; `index`
    distinguishes the texts of one request. `num_likeliest` None reports no log-probabilities. `client` takes turns
    with the others in the queue. `slides` goes on past the model's context with the newest tokens alone, each read
    again. `tools` answer the calls of a turn; without them the turn ends the text.
    Raises: ConfigurationError for a prompt without tokens, or less than one new token.
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
            raise ConfigurationError("prompt: must have at least one token, got ''.")
        if self.num_new_tokens < 1:
            raise ConfigurationError(f"num_new_tokens: must be at least 1, got {self.num_new_tokens}.")


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
    """A turn of an answer that ends in calls: its text, and the calls with their results."""

    text: str
    results: Sequence[ToolResult]


@final
class Generation:
    """A request's text: its tokens, those in the cache's `slot`, and the text written so far.

    `num_shared` tokens of the prompt were in the cache at the start. `begins_at` is the token at position 0: above 0
    once a text slides.
    """

    def __init__(self, request: Request, *, pieces: Sequence[bytes]) -> None:
        self.request = request
        self.tokens = [*request.prompt]
        self.slot = self.num_cached = self.num_shared = self.begins_at = 0
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.scores: list[TokenScore] = []
        self.tool_turns: list[ToolTurn] = []
        self._turn_start, self._turn_text, self._is_call = len(self.tokens), 0, False
        self._stream = TextStream(pieces, stops=request.stops)
        self._held = HeldCall(None if request.tools is None else request.tools.call_words)
        seed = None if request.seed is None else f"{request.seed}/{request.index}"  # strings seed alike in any process
        self._random = random.Random(seed)

    @property
    def last_words(self) -> str:
        """Return the text behind the last results of tools: all of it without any."""
        return self.text[self._turn_text :]

    @property
    def new_tokens(self) -> list[int]:
        """Return the written tokens, including forced ones and an ending one."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def num_pending(self) -> int:
        """Return how many tokens must be read before the next one is chosen."""
        return len(self.tokens) - self.begins_at - self.num_cached

    @property
    def cached_tokens(self) -> list[int]:
        """Return the cached tokens, from position 0."""
        return self.tokens[self.begins_at : self.begins_at + self.num_cached]

    def draw(self) -> float:
        """Return this text's next random number in [0, 1)."""
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
            text += self._held.add(self._stream.finish()) + self._held.release()
            self.finish_reason = "stop" if self._stream.is_stopped else self.finish_reason
        self.text += text
        return Delta(self, text, token, score, self.finish_reason, results)

    def _text_of(self, token: int) -> str:
        """Return the text made certain by a token: none for an end, or inside a call."""
        edges = None if self.request.tools is None else self.request.tools.call_tokens
        if edges is not None and token in edges:
            self._is_call = token == edges[0]
        return "" if token in self.request.end_ids or self._is_call else self._held.add(self._stream.add(token))

    def _use_tools(self, token: int) -> Sequence[ToolResult]:
        """Answer the calls of an ended turn, and let the text go on behind the results."""
        tools = self.request.tools
        if tools is None or token != tools.turn_end or self._stream.is_stopped:
            return ()
        results, forced = tools.answer(self.tokens[self._turn_start :])
        if results:
            self._held.drop()
            self.tokens += forced
            self.tool_turns.append(ToolTurn(self.text[self._turn_text :].rstrip("\n"), results))
            self._turn_start, self._turn_text, self._is_call = len(self.tokens), len(self.text), False
        return results


@final
class TextStream:
    """One text as it is written; the beginning of a character or of a stop string is held back.

    `pieces` are the bytes of every token, as `Tokenizer.bytes_of_ids` returns them.
    """

    def __init__(self, pieces: Sequence[bytes], *, stops: Sequence[str] = ()) -> None:
        self._pieces, self._stops = pieces, tuple(filter(None, stops))
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.is_stopped = False

    def add(self, token: int) -> str:
        """Return the text made certain by a token; nothing after a stop string."""
        piece = self._pieces[token] if token < len(self._pieces) else b""
        return self._certain(self._decoder.decode(piece))

    def finish(self) -> str:
        """Return the rest: half a character is U+FFFD."""
        text = self._certain(self._decoder.decode(b"", final=True)) + ("" if self.is_stopped else self._held)
        self._held = ""
        return text

    def _certain(self, more: str) -> str:
        if self.is_stopped:
            return ""
        text = self._held + more
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped, self._held = True, ""
            return text[: min(found)]
        begun = max((_num_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - begun :]
        return text[: len(text) - begun]


@final
class HeldCall:
    """Text of one turn after another, held back from the beginning of a call in words; None: calls are tokens."""

    def __init__(self, words: CallWords | None) -> None:
        self._words, self._held, self._is_first = words, "", True

    def add(self, text: str) -> str:
        """Return the text outside any call."""
        if self._words is None:
            return text
        text = self._held + text
        start = self._start(text, self._words)
        self._held = text[start:]
        self._is_first = self._is_first and start == 0
        return text[:start]

    def _start(self, text: str, words: CallWords) -> int:
        """Return the first character to be held back."""
        if words.end is None:
            said = text.lstrip()
            may_be_call = said.startswith(words.begin) or words.begin.startswith(said)
            return 0 if self._is_first and may_be_call else len(text)
        found = text.find(words.begin)
        return found if found >= 0 else len(text) - _num_begun(text, words.begin)

    def release(self) -> str:
        """Return the text held back: it was not a call after all."""
        held, self._held = self._held, ""
        return held

    def drop(self) -> None:
        """Forget an answered call; another turn begins."""
        self._held, self._is_first = "", True


def _num_begun(text: str, stop: str) -> int:
    """Return how many characters at the text's end begin a stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
