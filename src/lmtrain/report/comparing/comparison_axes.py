"""Where the curves of a comparison stand on a page: whole from their beginning, and apart where they end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmtrain.report.charts import Place, scale, ticks
from lmtrain.report.comparing.choices import Choice
from lmtrain.report.comparing.compared_run import Curve

OPENING: Final = 0.1  # of the tokens: there every curve falls steeply from the same height
OPENING_HEIGHT: Final = 0.2  # of the page, where the opening is drawn smaller than the rest
LEAST_TIMES: Final = 2.0  # smaller: less is not worth a second scale


@dataclass(frozen=True, kw_only=True)
class ComparisonAxes:
    """The values with a label, and those at the bottom, at the break and at the top; without a break it is the top."""

    most_tokens: float
    labels: Sequence[float]
    bottom: float
    cut: float
    top: float

    @property
    def is_broken(self) -> bool:
        """Tell whether the opening is drawn at a smaller scale than the rest."""
        return self.cut < self.top

    @property
    def words(self) -> str:
        """Say how much smaller the scale of the opening is; empty where it is the same."""
        return f"above {self.cut:.4g}: drawn {self.times_smaller:.2g} times smaller" if self.is_broken else ""

    @property
    def times_smaller(self) -> float:
        """Return the scale of the rest divided by the opening's."""
        return (self.top - self.cut) / OPENING_HEIGHT * (1 - OPENING_HEIGHT) / (self.cut - self.bottom)

    def place(self, *, bottom: float, top: float) -> Place:
        """Return a function from values to the positions between two on the page."""
        if not self.is_broken:
            return scale((self.bottom, self.top), bottom, top)
        middle = top + OPENING_HEIGHT * (bottom - top)
        lower, upper = scale((self.bottom, self.cut), bottom, middle), scale((self.cut, self.top), middle, top)
        return lambda value: lower(value) if value <= self.cut else upper(value)


def comparison_axes(choices: Sequence[Choice]) -> ComparisonAxes:
    """Return axes with whole curves and large differences at the end.

    All curves begin at one height and fall steeply: where the opening would take most of the page, it gets a fifth.
    """
    most = max(choice.tokens for choice in choices)
    points = [point for choice in choices for run in choice.runs for point in run.curve]
    highest, lowest = max(value for _, value in points), min(value for _, value in points)
    late = max(value for tokens, value in points if tokens >= OPENING * most)
    lower = ticks(lowest, late, num=6)
    if len(lower) > 1 and highest > lower[-1]:
        axes = ComparisonAxes(most_tokens=most, labels=[*lower, highest], bottom=lower[0], cut=lower[-1], top=highest)
        if axes.times_smaller >= LEAST_TIMES:
            return axes
    whole = ticks(lowest, highest, num=6)
    return ComparisonAxes(most_tokens=most, labels=whole, bottom=whole[0], cut=whole[-1], top=whole[-1])


def band(choice: Choice) -> Curve:
    """Return the outline between the highest and the lowest seed, there and back; empty for one seed."""
    if len(choice.runs) < 2:
        return []
    upper = [(tokens, max(values)) for tokens, values in choice.seed_values]
    return [*upper, *((tokens, min(values)) for tokens, values in reversed(choice.seed_values))]
