"""argparse with each refusal as one line, with the nearest flag."""

import argparse
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn

from lmtrain.errors import ConfigurationError, suggest

UNKNOWN: Final = "unrecognized arguments: "


class FlagParser(argparse.ArgumentParser):
    """An argparse parser that refuses in our form."""

    parts: Mapping[str, "FlagParser"] = MappingProxyType({})  # the parsers of subcommands

    @property
    def known(self) -> list[str]:
        """Return the names of its flags."""
        return [name for name in self._option_string_actions if name.startswith("--") and name != "--help"]

    def add_subparsers(self, **settings: Any) -> Any:
        """Add parsers of subcommands as argparse does, and keep them by name."""
        found = super().add_subparsers(**settings)
        self.parts = found.choices
        return found

    def taken(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse the flags among words of others; one written almost as a flag of this parser is refused."""
        asked, others = self.parse_known_args([*words])
        flags = [word for word in others if word.startswith("--")]
        self.refuse_unknown([word for word in flags if suggest(word.partition("=")[0], self.known)])
        return asked, others

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Refuse the first of some unknown words, if there is one."""
        if words:
            self.error(UNKNOWN + words[0])

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigurationError with the nearest known flag."""
        if message.startswith(UNKNOWN):
            message = self._unknown(message.removeprefix(UNKNOWN))
        end = "" if message.endswith(("?", ".")) else "."
        raise ConfigurationError(f"{self.prog}: {message}{end} `{self.prog} --help` lists the flags.")

    def _unknown(self, words: str) -> str:
        word = next((word for word in words.split() if word.startswith("-")), words)
        if not word.startswith("-"):
            return f"{words}: too many words"
        known = [*self.known, *(flag for part in self.parts.values() for flag in part.known)]
        return f"{word}: unknown flag.{suggest(word.partition('=')[0], known)}"
