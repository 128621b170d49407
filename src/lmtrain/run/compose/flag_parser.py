"""argparse with each refusal as one line: the word, the rule, and the nearest flag."""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from typing_extensions import override

from lmtrain.errors import ConfigurationError, did_you_mean, suggest

UNKNOWN: Final = "unrecognized arguments: "
LACKING: Final = "the following arguments are required: "
OF_FLAG: Final = re.compile(r"argument (?P<names>[^:]+): (?P<problem>.*)", re.DOTALL)
OF_TYPE: Final = re.compile(r"invalid (?P<kind>int|float) value: '(?P<value>.*)'", re.DOTALL)
OF_PART: Final = re.compile(r"invalid choice: '(?P<word>.*)' \(choose from", re.DOTALL)
KINDS: Final = {"int": "a whole number", "float": "a number"}


class FlagParser(argparse.ArgumentParser):
    """An argparse parser that refuses in our form; `more` are flags read elsewhere on the same command line."""

    def __init__(self, *arguments: Any, more: Sequence[str] = (), **settings: Any) -> None:
        self.known: list[str] = [*more]
        self.parts: dict[str, Any] = {}
        super().__init__(*arguments, **settings)

    @override
    def add_argument(self, *names: Any, **settings: Any) -> Any:
        self.known += [str(name) for name in names if str(name).startswith("-")]
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
        raise ConfigurationError(f"{self._worded(message)} `{self.prog} --help` lists the flags.")

    def _worded(self, message: str) -> str:
        if message.startswith(UNKNOWN):
            return self._unknown(message.removeprefix(UNKNOWN))
        if message.startswith(LACKING):
            names = message.removeprefix(LACKING).split(", ")
            listed = "; `lmtrain ls` lists the runs" if "run" in names else ""
            shown = [name if name.startswith("-") or "|" in name else name.upper() for name in names]
            return f"{self.prog} lacks {' and '.join(shown)}{listed}."
        found = OF_FLAG.fullmatch(message)
        if found is None:
            return f"{message[0].upper()}{message[1:]}."
        flag, problem = found["names"].rpartition("/")[2], found["problem"]
        if self.parts and not flag.startswith("-") and (part := OF_PART.match(problem)):
            word = part["word"]
            return f"{self.prog}: {word} must be one of {', '.join(self.parts)}.{suggest(word, self.parts)}"
        if problem.startswith("expected one argument"):
            return f"{flag} needs a value; write {flag} VALUE."
        if problem.startswith("ignored explicit argument"):
            return f"{flag} takes no value; write {flag}."
        wrong = OF_TYPE.fullmatch(problem)
        return f"{flag}={wrong['value']} must be {KINDS[wrong['kind']]}." if wrong else f"{flag}: {problem}."

    def _unknown(self, words: str) -> str:
        word = next((word for word in words.split() if word.startswith("-")), words)
        flag, equals, _ = word.partition("=")
        known = [*self.known, *(flag for part in self.parts.values() for flag in part.known)]
        if equals and flag in known:
            return f"{word}: {flag} takes no value; write {flag}."
        if not word.startswith("-"):
            return f"{words}: too many words for {self.prog}."
        return f"{word}: unknown flag.{did_you_mean(_near(flag, known))}"


def _near(flag: str, known: Sequence[str]) -> list[str]:
    """Return the nearest flag by its letters."""
    return difflib.get_close_matches(flag, [name for name in known if name.startswith("--")], n=1, cutoff=0.7)
