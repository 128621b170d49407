"""argparse with each refusal as one line: the word, the rule, and the nearest flag."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from typing_extensions import override

from lmtrain.errors import ConfigurationError, suggest

UNKNOWN: Final = "unrecognized arguments: "
LACKING: Final = "the following arguments are required: "
OF_FLAG: Final = re.compile(r"argument (?P<names>[^:]+): (?P<problem>.*)", re.DOTALL)
OF_TYPE: Final = re.compile(r"invalid (?P<kind>int|float) value: '(?P<value>.*)'", re.DOTALL)
OF_PART: Final = re.compile(r"invalid choice: '(?P<word>.*)' \(choose from", re.DOTALL)
KINDS: Final = {"int": "a whole number", "float": "a number"}


class FlagParser(argparse.ArgumentParser):
    """An argparse parser that refuses in our form."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.known: list[str] = []
        self.parts: dict[str, Any] = {}
        super().__init__(*arguments, **settings)

    @override
    def add_argument(self, *names: Any, **settings: Any) -> Any:
        self.known += [str(name) for name in names if str(name).startswith("--")]
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
        flags = [word for word in others if word.startswith("--")]
        self.refuse_unknown([word for word in flags if suggest(word.partition("=")[0], self.known)])
        return asked, others

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Refuse the first of some unknown words, if there is one."""
        if words:
            self.error(UNKNOWN + words[0])

    @override
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{self._worded(message)} `{self.prog} --help` lists the flags.")

    def _worded(self, message: str) -> str:
        if message.startswith(UNKNOWN):
            return self._unknown(message.removeprefix(UNKNOWN))
        if message.startswith(LACKING):
            names = message.removeprefix(LACKING).split(", ")
            shown = [name if name.startswith("-") or "|" in name else name.upper() for name in names]
            return f"{self.prog} lacks {' and '.join(shown)}{'; `lmtrain ls` lists the runs' * ('run' in names)}."
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
        if not word.startswith("-"):
            return f"{words}: too many words for {self.prog}."
        known = [*self.known, *(flag for part in self.parts.values() for flag in part.known)]
        return f"{word}: unknown flag.{suggest(word.partition('=')[0], known)}"
