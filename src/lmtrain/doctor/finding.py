"""The result of one check: good, worth knowing, or preventing a long run; and its fix."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A line of the doctor; `fix` is empty for a good one."""

    name: str
    state: State
    found: str
    fix: str = ""


def graded(name: str, found: str, *, fix: str, is_bad: bool = False, is_worse: bool = False) -> Finding:
    """Return a finding: bad, worth a warning, or good, which needs no fix."""
    state: State = "bad" if is_bad else "warn" if is_worse else "ok"
    return Finding(name=name, state=state, found=found, fix="" if state == "ok" else fix)
