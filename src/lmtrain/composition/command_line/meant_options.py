"""The option of a group by another spelling, its name elsewhere, or a word of its name."""

import re
from collections.abc import Iterable
from typing import Final

from lmtrain.composition.command_line.called_elsewhere import CALLED_OPTIONS, NEAREST, NO_OPTION

AMOUNT: Final = re.compile(r"(?P<dollars>\$)?[\d.]+(?:[KMBGT]|(?P<time>s|min|h|d))?")
OFF: Final = ("false", "null", "none", "0", "off", "no")


def spelled(option: str) -> str:
    """Return a word in the letters of our options: bf16-true, BF16_True and mine/bf16-true are bf16_true."""
    return re.sub(r"\W", "_", option.rpartition("/")[2].lower())


def options_meant(group: str, option: str, known: Iterable[str]) -> list[str]:
    """Return the options of that spelling or name elsewhere, the likeliest first; else those made of that word.

    Else the longest at the beginning of it: deepspeed_stage_2 is deepspeed, and adamw_torch adamw.
    """
    known, word = sorted(known), spelled(option)
    elsewhere = CALLED_OPTIONS.get(group, {})
    called = [name for name in (word, *elsewhere.get(word, ())) if name in known]
    if word in OFF and not called:
        called = [name for name in ("none",) if name in known]
    made_of_it = called or [name for name in known if word in name.split("_")]
    begun = [name for name in (*known, *elsewhere) if word.startswith(f"{name}_")]
    if made_of_it or not begun or word in NO_OPTION.get(group, {}):
        return made_of_it
    return options_meant(group, max(begun, key=len), known)


def why_nearest(group: str, option: str) -> str:
    """Return the reasons for an option in the place of another program's, "" where it is the same."""
    word = spelled(option)
    reasons = [why for part, why in NEAREST.get(group, {}).items() if word.startswith(part) or word.endswith(part)]
    return "; ".join(dict.fromkeys(reasons))


def option_meant(group: str, option: str, known: Iterable[str]) -> str | None:
    """Return the likeliest of them, None where several are made of the word."""
    meant = options_meant(group, option, known)
    is_called_so = spelled(option) in {*meant, *OFF, *CALLED_OPTIONS.get(group, {})}
    return meant[0] if meant and (is_called_so or len(meant) == 1) else None


def amount_meant(group: str, option: str) -> str | None:
    """Return the key and value of budget=10M, None for another word."""
    amount = AMOUNT.fullmatch(option) if group == "budget" else None
    if amount is None:
        return None
    unit = (amount["dollars"] and "usd") or (amount["time"] and "hours") or "tokens"
    return f"budget.{unit}={option}"
