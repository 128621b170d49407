"""The size of texts within rows of a table: an array of equal texts may hold one alone, and numbers for the others."""

from collections.abc import Iterable
from typing import Any


def num_characters(values: Iterable[Any]) -> int:
    """Return the characters of all texts within values, lists and dictionaries."""
    total = 0
    for value in values:
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, dict | list):
            total += num_characters(value.values() if isinstance(value, dict) else value)
    return total
