"""Conversations of questions made by rule from Python source code, each with one right answer: offline.

The questions are for models of a million parameters. One is held out for scoring by a hash of its text, so that no
training conversation has it.
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

from data_pipelines.sources.base import Document, Skipped, Source, asked
from data_pipelines.sources.python_stdlib import PythonStandardLibrary
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.errors import DataError, wrong

HELD_OUT_SHARE: Final = 10  # one question in ten
TRIES: Final = 1000
MAX_SUM: Final = 30  # of either number
LONGEST_LINE: Final = 60  # characters of a line of code
WORD: Final = re.compile(r"\b[a-z]{3,8}\b")
DEFINITION: Final = re.compile(r"^ *def (\w+)\((.+)\):$", re.MULTILINE)
IMPORT: Final = re.compile(r"^ *from ([a-z_][a-z_.]*) import \w+(?:, \w+)*$", re.MULTILINE)


@dataclass(frozen=True)
class MadeQuestion:
    """A question, its answer, and the name of its kind."""

    kind: str
    question: str
    answer: str

    @property
    def is_held_out(self) -> bool:
        """Return whether it is kept for scoring."""
        digest = hashlib.sha256(self.question.encode()).digest()
        return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0


@dataclass(frozen=True)
class Material:
    """Words and lines of source code, in the order of their first use."""

    words: Sequence[str]
    definitions: Sequence[tuple[str, str, str]]  # line, name, arguments
    imports: Sequence[tuple[str, str]]  # line, module


def material_of(texts: Iterable[str], *, num_words: int) -> Material:
    """Return the commonest words, and the short definitions and imports, of some code."""
    words: Counter[str] = Counter()
    definitions: dict[str, Any] = {}
    imports: dict[str, Any] = {}
    for text in texts:
        words.update(WORD.findall(text))
        for pattern, found in ((DEFINITION, definitions), (IMPORT, imports)):
            for match in pattern.finditer(text):
                line = match[0].strip()
                if len(line) <= LONGEST_LINE:
                    found.setdefault(line, (line, *match.groups()))
    commonest = [word for word, _ in words.most_common(num_words)]
    return Material(commonest, [*definitions.values()], [*imports.values()])


def make_questions(
    material: Material, *, seed: int, held_out: bool, kinds: Sequence[str] | None = None
) -> Iterator[MadeQuestion]:
    """Yield questions for ever, of the kinds in turn (None: all): those held out, or the others.

    A kind with too few questions for that is passed over.

    Raises:
        DataError: All kinds have too few.
    """
    draw, asked = random.Random(seed), tuple(kinds or KINDS)
    while True:
        num_made = 0
        for kind in asked:
            tries = (MadeQuestion(kind, *KINDS[kind](draw, material)) for _ in range(TRIES))
            made = next((one for one in tries if one.is_held_out == held_out), None)
            if made is not None:
                num_made += 1
                yield made
        if num_made == 0:
            raise DataError(f"too little code: it makes no question of the kinds {', '.join(asked)}.")


def _words(draw: random.Random, material: Material) -> list[str]:
    return draw.sample(material.words, draw.randint(2, 4))


def _repeat(draw: random.Random, material: Material) -> tuple[str, str]:
    words = " ".join(_words(draw, material))
    return draw.choice(("Repeat: {}", "Say this again: {}")).format(words), words


def _reverse(draw: random.Random, material: Material) -> tuple[str, str]:
    words = _words(draw, material)
    asked = draw.choice(("Reverse the order of these words: {}", "Say these words backwards: {}"))
    return asked.format(" ".join(words)), " ".join(reversed(words))


def _capitals(draw: random.Random, material: Material) -> tuple[str, str]:
    words = " ".join(_words(draw, material)[:2])
    return draw.choice(("Write in capitals: {}", "In capital letters, please: {}")).format(words), words.upper()


def _last(draw: random.Random, material: Material) -> tuple[str, str]:
    words = _words(draw, material)
    place = draw.choice(("first", "last"))
    asked = draw.choice(("Which word comes {}: {}", "What is the {} word of: {}"))
    return asked.format(place, " ".join(words)), words[0 if place == "first" else -1]


def _sum(draw: random.Random, _: Material) -> tuple[str, str]:
    one, other = draw.randint(0, MAX_SUM), draw.randint(0, MAX_SUM)
    return draw.choice(("What is {} + {}?", "How much is {} plus {}?")).format(one, other), str(one + other)


def _arguments(draw: random.Random, material: Material) -> tuple[str, str]:
    line, name, arguments = draw.choice(material.definitions)
    asked = draw.choice(("Complete `def {1}(` as in `{0}`", "Here is `{0}`. Go on: `def {1}(`"))
    return asked.format(line, name), f"{arguments}):"


def _module(draw: random.Random, material: Material) -> tuple[str, str]:
    line, module = draw.choice(material.imports)
    return draw.choice(("Which module is imported by `{}`?", "Name the module of `{}`")).format(line), module


KINDS: Final[Mapping[str, Callable[[random.Random, Material], tuple[str, str]]]] = {
    "repeat": _repeat,
    "reverse": _reverse,
    "capitals": _capitals,
    "first_or_last": _last,
    "sum": _sum,
    "definition": _arguments,
    "module": _module,
}


VERSION = 1  # raised when the same settings come to make other conversations


@final
class MadeConversations(Source):
    """Conversations of one or two questions each; `folder` of Python files None is the standard library."""

    name = "made_conversations"
    has_conversations = True

    def __init__(
        self,
        *,
        num_conversations: int = 40_000,
        num_words: int = 400,
        kinds: Sequence[str] | None = None,
        seed: int = 0,
        folder: str | None = None,
    ) -> None:
        """Make `num_conversations` from the `num_words` commonest words, with questions of some `kinds`; None: all."""
        self._num_conversations, self._num_words, self._seed = num_conversations, num_words, seed
        if unknown := [kind for kind in kinds or () if kind not in KINDS]:
            raise wrong("source.kinds", f"of {', '.join(KINDS)}", unknown[0])
        self._kinds = tuple(kind for kind in KINDS if kind in (kinds or KINDS))
        self._code = PythonStandardLibrary(folder=folder)

    def fingerprint(self) -> str:
        """Return the settings and the fingerprint of the code."""
        some = "" if self._kinds == tuple(KINDS) else f"{'+'.join(self._kinds)}/"
        return f"{VERSION}/{some}{self._num_conversations}/{self._num_words}/{self._seed}/{self._code.fingerprint()}"

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield each conversation under its number."""
        questions, draw = self._questions(held_out=False), random.Random(self._seed)
        for number in range(self._num_conversations):
            made = [next(questions) for _ in range(draw.choice((1, 1, 2)))]
            turns = [message for one in made for message in asked(one.question, one.answer)]
            yield Document(f"{number:08d}", "", messages=tuple(turns))
            self.fraction_read = (number + 1) / self._num_conversations

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
        """Return questions of the kinds in turn, which are in no conversation of any seed."""
        questions, found = self._questions(held_out=True), dict[str, MadeQuestion]()
        while len(found) < number:
            made = next(questions)
            found.setdefault(made.question, made)
        return [*found.values()]

    def _questions(self, *, held_out: bool) -> Iterator[MadeQuestion]:
        return make_questions(self.material, seed=self._seed, held_out=held_out, kinds=self._kinds)


MADE_CONVERSATIONS_FACTS: Final = SourceFacts(has_conversations=True)
