"""Overrides by their keys: an override's own, and a command line without some."""

from collections.abc import Iterable, Sequence


def key_of(word: str) -> str:
    """Return an override's key, without the sign before it."""
    return word.lstrip("+~").partition("=")[0]


def without(words: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the overrides but for those of these keys, and of the keys below them."""
    return [word for word in words if not any(f"{key_of(word)}.".startswith(f"{name}.") for name in names)]
