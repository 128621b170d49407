"""Possible improvements of a config's step time, and the outcomes of those tried."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmtrain.accounting.observed.step_parts import WORTH_TELLING


@dataclass(frozen=True, kw_only=True)
class Change:
    """Words for the command line, and why they may help.

    `most_saved` is an upper bound on the saved share of a token's time, by arithmetic; None: unknown.
    `compiles`: a trial compiles the model; None: if the run's is compiled.
    """

    words: tuple[str, ...]
    why: str
    most_saved: float | None = None
    compiles: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ChangeOutcome:
    """A change's saving, as a share of a token's time; None: it was not tried."""

    change: Change
    saved: float | None

    @property
    def helps(self) -> bool:
        """Tell whether it was worth while, or may be."""
        return self.saved is None or self.saved > WORTH_TELLING

    def line(self) -> str:
        """Tell its gain, or its not being tried."""
        words = " ".join(self.change.words)
        if self.saved is not None:
            return f"{words}: {_faster(self.saved)}, measured here ({self.change.why})"
        most = f", up to {_faster(self.change.most_saved)} a token" if self.change.most_saved else ""
        return f"{words}: {self.change.why}{most}; not tried"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "change": list(self.change.words),
            "why": self.change.why,
            "most_saved": self.change.most_saved,
            "saved": self.saved,
        }


def best_first(outcomes: Sequence[ChangeOutcome]) -> list[ChangeOutcome]:
    """Return the helpful ones: measured ones by their gain, then untried ones by their bound."""
    return sorted(
        (each for each in outcomes if each.helps),
        key=lambda each: (each.saved is None, -(each.saved or each.change.most_saved or 0.0)),
    )


def without_gain(outcomes: Sequence[ChangeOutcome]) -> str:
    """Name the ones tried in vain."""
    return ", ".join(" ".join(each.change.words) for each in outcomes if not each.helps)


def _faster(saved: float) -> str:
    return f"{1 / (1 - saved) - 1:.0%} faster"
