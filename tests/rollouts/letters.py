"""A person's own reward."""

from pathlib import Path


def early_letters(answer):
    """Give the number of letters before m, over eight; no number, or not always, while a file says so."""
    if Path("broken").exists():
        return float("nan")
    if Path("brittle").exists():
        assert sum(map(ord, answer.text)) % 4, "brittle"
    return sum(letter < "m" for letter in answer.text) / 8
