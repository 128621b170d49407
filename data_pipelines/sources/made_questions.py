"""Questions with one right answer each, made by rule from source code, for models of a million parameters.

A question is held out for scoring by a hash of its text, so that no training conversation has it.
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lmtrain.errors import DataError

HELD_OUT_SHARE: Final = 10  # one question in so many
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
        """Tell whether it is kept for scoring."""
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
    definitions: dict[str, tuple[str, str, str]] = {}
    imports: dict[str, tuple[str, str]] = {}
    for text in texts:
        words.update(WORD.findall(text))
        for found in DEFINITION.finditer(text):
            line = found[0].strip()
            if len(line) <= LONGEST_LINE:
                definitions.setdefault(line, (line, found[1], found[2]))
        for found in IMPORT.finditer(text):
            line = found[0].strip()
            if len(line) <= LONGEST_LINE:
                imports.setdefault(line, (line, found[1]))
    commonest = [word for word, _ in words.most_common(num_words)]
    return Material(commonest, [*definitions.values()], [*imports.values()])


def make_questions(
    material: Material, *, seed: int, held_out: bool, kinds: Sequence[str] | None = None
) -> Iterator[MadeQuestion]:
    """Yield questions for ever, of the kinds in turn (None: all): those held out, or the others.

    A kind of so few questions that none of them is such a one is passed over.

    Raises:
        DataError: All kinds are.
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
            raise DataError(f"the code is too little: it makes no question of {', '.join(asked)} for this use.")


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
