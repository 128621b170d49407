"""One figure of results/accounting_oracles.md and its reference."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One figure: ours, the reference's, how exactly the reference is given, and what a text in circulation says."""

    what: str
    ours: float
    reference: float
    unit: str = ""
    note: str = ""
    within: float = 1e-9

    @property
    def difference(self) -> float:
        """Return how far ours is off, relative to the reference."""
        return self.ours / self.reference - 1 if self.reference else self.ours

    @property
    def agrees(self) -> bool:
        """Tell whether ours is as near as the reference is exact."""
        return abs(self.difference) <= self.within

    def line(self) -> str:
        """Return the row of the table."""
        off = "exact" if abs(self.difference) < 1e-9 else f"{self.difference:+.2%}"
        off = "rounding" if off in ("+0.00%", "-0.00%") else off
        off = off if self.agrees else f"**{off}**"
        return f"| {self.what} | {self._text(self.ours)} | {self._text(self.reference)} | {off} | {self.note} |"

    def _text(self, number: float) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if float(number).is_integer() and abs(number) < 1e15:
            return f"{number:,.0f}{unit}"
        return f"{number:,.6g}{unit}" if 1e-3 <= abs(number) < 1e9 else f"{number:.6e}{unit}"
