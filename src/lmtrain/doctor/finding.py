"""The finding of one check: good, worth knowing, or in the way of a long run; and its remedy."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A line of the doctor: `fix` is the remedy, empty where none is needed."""

    name: str
    state: State
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.state == "ok" or self.fix, "what is not well has a fix"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def graded(name: str, found: str, *, fix: str, is_bad: bool = False, is_worse: bool = False) -> Finding:
    """Return a finding: bad, worth a warning, or well; a fix goes with the first two."""
    state: State = "bad" if is_bad else "warn" if is_worse else "ok"
    return Finding(name=name, state=state, found=found, fix="" if state == "ok" else fix)
