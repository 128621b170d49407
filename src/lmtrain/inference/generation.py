"""A requested text and its progress: tokens to text as they come, stop strings, and calls of tools.

Text comes out in whole characters and without any part of a stop string or of a call, however tokens cut it.
"""

import codecs
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from lmtrain.accounting.options.ranges import require_whole
from lmtrain.errors import ConfigurationError
from lmtrain.inference.grammar import Grammar
from lmtrain.inference.sampling import Sampling
from lmtrain.tokenizers.chat import CallWords
from lmtrain.tokenizers.conversation import ToolCall, read_call

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt of token ids to continue by at most `num_new_tokens`.

    `end_ids` and `stops` end the text and are not part of it. `seed` None draws differently each time; `index`
    distinguishes the texts of one request. `num_likeliest` None reports no log-probabilities; with `scores_prompt`
    they begin with the prompt's second token. `slides` goes on past the model's context with the newest tokens alone,
    each read again. `calls` are taken out of the text; None leaves them in it. The text follows a `grammar`.
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
    scores_prompt: bool = False
    slides: bool = False
    calls: CallWords | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ConfigurationError("prompt: must have at least one token, got ''.")
        require_whole("num_new_tokens", self.num_new_tokens)


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
    """A step's addition to a text; `finish_reason` None while it goes on."""

    generation: "Generation"
    text: str
    token: int | None = None
    score: TokenScore | None = None
    finish_reason: FinishReason | None = None


@final
class Generation:
    """A request's text: its tokens, those in the cache's `slot`, and the text and calls written so far.

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
        self._stream = TextStream(pieces, stops=request.stops, names=request.calls.tokens if request.calls else {})
        self._calls = CallStream(request.calls)
        self._grammar = None if request.grammar is None else request.grammar.begin()
        seed = None if request.seed is None else f"{request.seed}/{request.index}"  # strings seed alike in any process
        self._random = random.Random(seed)

    @property
    def calls(self) -> Sequence[ToolCall]:
        """Return the calls of tools in the text."""
        return self._calls.found

    @property
    def new_tokens(self) -> list[int]:
        """Return the written tokens, including an ending one."""
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

    def allowed(self, logits: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
        """Return logits with those of tokens outside the grammar at minus infinity."""
        return logits if self._grammar is None else self._grammar.allowed(logits)

    def add(self, token: int, score: TokenScore | None, *, most_tokens: int | None) -> Delta:
        """Append a token and return the new certain text; more than `most_tokens` to read end it as its length does."""
        self.tokens.append(token)
        if score is not None:
            self.scores.append(score)
        is_end = token in self.request.end_ids
        if self._grammar is not None:
            self._grammar.add(token)
        text = "" if is_end else self._calls.add(self._stream.add(token))
        is_full = most_tokens is not None and len(self.tokens) - self.begins_at > most_tokens
        if is_end or self._stream.is_stopped or (self._grammar is not None and self._grammar.is_complete):
            self.finish_reason = "stop"
        elif is_full or len(self.new_tokens) >= self.request.num_new_tokens:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            text += self._calls.add(self._stream.finish()) + self._calls.finish()
            if self.finish_reason == "stop" or self._stream.is_stopped:
                self.finish_reason = "tool_calls" if self.calls else "stop"
        self.text += text
        return Delta(self, text, token, score, self.finish_reason)


@final
class TextStream:
    """One text as it is written; the beginning of a character or of a stop string is held back.

    `pieces` are the bytes of every token, as `Tokenizer.bytes_of_ids` returns them; `names` those of special tokens.
    """

    def __init__(
        self, pieces: Sequence[bytes], *, stops: Sequence[str] = (), names: Mapping[int, bytes] | None = None
    ) -> None:
        self._pieces, self._names, self._stops = pieces, names or {}, tuple(filter(None, stops))
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.is_stopped = False

    def add(self, token: int) -> str:
        """Return the text made certain by a token; nothing after a stop string."""
        piece = self._names.get(token) or (self._pieces[token] if token < len(self._pieces) else b"")
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
class CallStream:
    """The text of a turn without its calls, which are `found`; what may begin a call is held back."""

    def __init__(self, words: CallWords | None) -> None:
        self._words, self._held, self._has_text = words, "", False
        self.found: list[ToolCall] = []

    def add(self, text: str) -> str:
        """Return the text outside any call."""
        if self._words is None or self._has_text:
            return text
        self._held += text
        if self._words.end is None:
            said = self._held.lstrip()
            if said.startswith(self._words.begin) or self._words.begin.startswith(said):
                return ""
            self._has_text = True
            return self.finish()
        return self._outside(self._words.begin, self._words.end)

    def _outside(self, begin: str, end: str) -> str:
        shown = ""
        while (start := self._held.find(begin)) >= 0:
            call, is_whole, rest = self._held[start + len(begin) :].partition(end)
            if not is_whole:
                break
            shown += self._held[:start] + self._text_of(call, begin + call + end)
            self._held = rest
        cut = start if start >= 0 else len(self._held) - _num_begun(self._held, begin)
        shown, self._held = shown + self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """Return the text held back, unless it is a call."""
        held, self._held = self._held, ""
        is_call = self._words is not None and self._words.end is None and not self._has_text
        return self._text_of(held, held) if is_call and held.strip() else held

    def _text_of(self, call: str, written: str) -> str:
        """Note a call and return no text; what is not a call is text."""
        assert self._words is not None
        try:
            self.found.append(read_call(call.strip(), arguments_key=self._words.arguments_key))
        except ValueError:
            return written
        return ""


def _num_begun(text: str, stop: str) -> int:
    """Return how many characters at the text's end begin a stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
