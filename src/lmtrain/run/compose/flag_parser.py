"""A parser of flags, with each refusal as one line: the word, the rule, and the nearest flag."""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from typing_extensions import override

from lmtrain.errors import ConfigurationError, did_you_mean, suggest

UNKNOWN: Final = "unrecognized arguments: "
LACKING: Final = "the following arguments are required: "
OF_TYPE: Final = re.compile(r"invalid (?P<kind>int|float) value: '(?P<value>.*)'", re.DOTALL)
OF_PART: Final = re.compile(r"invalid choice: '(?P<word>.*)' \(choose from", re.DOTALL)
NOUN: Final = {"int": "no whole number", "float": "no number"}
OF_FLAG: Final = re.compile(r"argument (?P<names>[^:]+): (?P<problem>.*)", re.DOTALL)


class FlagParser(argparse.ArgumentParser):
    """An argparse parser to refuse in our form; `more` are flags read elsewhere on the same command line."""

    def __init__(self, *arguments: Any, more: Sequence[str] = (), **settings: Any) -> None:
        self.known: list[str] = [*more]
        self.places: list[str] = []  # of words without a flag, in their order
        self.parts: dict[str, Any] = {}
        super().__init__(*arguments, **settings)

    @override
    def add_argument(self, *names: Any, **settings: Any) -> Any:
        self.known += [str(name) for name in names if str(name).startswith("-")]
        self.places += [str(name).upper() for name in names if not str(name).startswith("-")]
        return super().add_argument(*names, **settings)

    @override
    def add_subparsers(self, **settings: Any) -> Any:
        found = super().add_subparsers(**settings)
        self.parts = found.choices
        return found

    def taken(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse the flags among words of others; one written almost as a flag of this parser is refused.

        Raises:
            ConfigurationError: The first one.
        """
        asked, others = self.parse_known_args([*words])
        for word in others:
            if word.startswith("--") and _near(word.partition("=")[0], self.known):
                self.error(UNKNOWN + word)
        return asked, others

    @override
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{self._said(message)} `{self.prog} --help` lists the flags.")

    def _said(self, message: str) -> str:
        if message.startswith(UNKNOWN):
            return self._unknown(message.removeprefix(UNKNOWN))
        if message.startswith(LACKING):
            names = message.removeprefix(LACKING).split(", ")
            listed = "; `lmtrain ls` lists the runs" if "run" in names else ""
            return f"{self.prog} lacks {' and '.join(map(_of_value, names))}{listed}."
        found = OF_FLAG.fullmatch(message)
        if found is None:
            return f"{message[0].upper()}{message[1:]}."
        if not found["names"].startswith("-") and self.parts and (part := OF_PART.match(found["problem"])):
            names, word = ", ".join(self.parts), part["word"]
            first = next(iter([*difflib.get_close_matches(word, self.parts, n=1), *self.parts]))
            whole = " ".join([self.prog, first, *self.parts[first].places])
            return f"{self.prog}: {part['word']} is none of {names}.{suggest(part['word'], self.parts)} Write {whole}."
        flag = found["names"].rpartition("/")[2]
        if found["problem"].startswith("expected one argument"):
            return f"{flag} has no value; write {flag} VALUE."
        if found["problem"].startswith("ignored explicit argument"):
            return f"{flag} has no value; write {flag}."
        wrong = OF_TYPE.fullmatch(found["problem"])
        return f"{flag}={wrong['value']} is {NOUN[wrong['kind']]}." if wrong else f"{flag}: {found['problem']}."

    def _unknown(self, words: str) -> str:
        word = next((word for word in words.split() if word.startswith("-")), words)
        flag, equals, _ = word.partition("=")
        known = [*self.known, *(flag for part in self.parts.values() for flag in part.known)]
        if equals and flag in known:
            return f"{word}: {flag} has no value; write {flag}."
        if not word.startswith("-"):
            return f"{words} is one word too many for {self.prog}."
        return f"{word}: there is no such flag.{did_you_mean(_near(flag, known))}"


def _of_value(name: str) -> str:
    if "|" in name:  # the kinds of a verb
        return " or ".join(name.split("|"))
    return name.rpartition("/")[2] if name.startswith("-") else name.upper()


def _near(flag: str, known: Sequence[str]) -> list[str]:
    """Return the nearest flag: by its letters, or the only one with its words among others."""
    words = {word for word in flag.strip("-").split("-") if len(word) > 1}
    with_words = [name for name in known if words and words <= set(name.strip("-").split("-"))]
    letters = [name.removeprefix("--") for name in known if name.startswith("--")]
    by_letters = [f"--{name}" for name in difflib.get_close_matches(flag.strip("-"), letters, n=1, cutoff=0.6)]
    return with_words if len(with_words) == 1 else by_letters
