"""Conversations of made questions, from the running Python's own standard library: offline, on every machine."""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Final, final

from data_pipelines.sources.base import Document, Skipped, Source
from data_pipelines.sources.made_questions import KINDS, MadeQuestion, Material, make_questions, material_of
from data_pipelines.sources.python_stdlib import PythonStandardLibrary
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.errors import ConfigurationError, DataError, suggest

SAMPLE_CONVERSATIONS: Final = 500
VERSION = 1  # raised when the same settings come to make other conversations


@final
class MadeConversations(Source):
    """Conversations of one or two questions each; `folder` of Python files None is the standard library."""

    def __init__(
        self,
        *,
        num_conversations: int = 40_000,
        num_words: int = 400,
        kinds: Sequence[str] | None = None,
        seed: int = 0,
        folder: str | None = None,
    ) -> None:
        """Make `num_conversations` from the `num_words` commonest words, with questions of some `kinds`; None: all.

        Raises:
            ConfigurationError: A number is too small, or a kind is none.
        """
        for name, value, least in (("num_conversations", num_conversations, 1), ("num_words", num_words, 4)):
            if value < least:
                raise ConfigurationError(f"source.{name}={value} is below {least}; nearest valid: {least}.")
        self._num_conversations, self._num_words, self._seed = num_conversations, num_words, seed
        self._kinds = _known(kinds)
        self._code = PythonStandardLibrary(folder=folder)
        self._num_made = 0

    @property
    def name(self) -> str:
        """Return `made_conversations`."""
        return "made_conversations"

    @property
    def has_conversations(self) -> bool:
        """Return true."""
        return True

    @property
    def fraction_read(self) -> float:
        """Return how many are made."""
        return self._num_made / self._num_conversations

    @property
    def text_bytes(self) -> int:
        """Return the bytes of all conversations by those of the first ones, copies of earlier ones among them."""
        first = [one for one in islice(self.documents(), SAMPLE_CONVERSATIONS) if isinstance(one, Document)]
        sizes = [len(message["content"].encode()) for one in first for message in one.messages or ()]
        return round(sum(sizes) / len(first) * self._num_conversations)

    def fingerprint(self) -> str:
        """Return the settings and the fingerprint of the code."""
        some = "" if self._kinds == tuple(KINDS) else f"{'+'.join(self._kinds)}/"
        return f"{VERSION}/{some}{self._num_conversations}/{self._num_words}/{self._seed}/{self._code.fingerprint()}"

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield each conversation under its number."""
        questions, draw = self._questions(held_out=False), random.Random(self._seed)
        for number in range(self._num_conversations):
            turns = [message for _ in range(draw.choice((1, 1, 2))) for message in messages_of(next(questions))]
            yield Document(f"{number:08d}", "", messages=tuple(turns))
            self._num_made = number + 1

    @cached_property
    def material(self) -> Material:
        """Return the words and lines for questions.

        Raises:
            DataError: The folder has too little code for every kind of question.
        """
        texts = (document.text for document in self._code.documents() if isinstance(document, Document))
        found = material_of(texts, num_words=self._num_words)
        if len(found.words) < self._num_words or not found.definitions or not found.imports:
            raise DataError(
                f"the code has {len(found.words)} words, {len(found.definitions)} definitions and "
                f"{len(found.imports)} imports; {len(KINDS)} kinds of questions need {self._num_words}, 1 and 1."
            )
        return found

    def held_out(self, number: int) -> list[MadeQuestion]:
        """Return questions of the kinds in turn, none of them in a conversation of any seed."""
        questions, found = self._questions(held_out=True), dict[str, MadeQuestion]()
        while len(found) < number:
            made = next(questions)
            found.setdefault(made.question, made)
        return [*found.values()]

    def _questions(self, *, held_out: bool) -> Iterator[MadeQuestion]:
        return make_questions(self.material, seed=self._seed, held_out=held_out, kinds=self._kinds)


def _known(kinds: Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds in their own order."""
    if kinds is None:
        return tuple(KINDS)
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigurationError(
                f"source.kinds={list(kinds)}: {kind!r} is no kind of question; "
                f"valid: {', '.join(KINDS)}.{suggest(str(kind), KINDS)}"
            )
    if not kinds:
        raise ConfigurationError("source.kinds=[] leaves no question; nearest valid: null, all kinds.")
    return tuple(kind for kind in KINDS if kind in kinds)


def messages_of(made: MadeQuestion) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a question and its answer as messages."""
    return {"role": "user", "content": made.question}, {"role": "assistant", "content": made.answer}


def made_conversations_facts() -> SourceFacts:
    """Tell whether documents are lists of messages."""
    return SourceFacts(has_conversations=True)
