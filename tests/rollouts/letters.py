"""A person's own reward."""

from pathlib import Path


def early_letters(answer):
    """Give the number of letters before m, over eight; no number while a file says that it is broken."""
    if Path("broken").exists():
        return float("nan")
    return sum(letter < "m" for letter in answer.text) / 8
