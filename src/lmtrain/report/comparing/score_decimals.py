"""The decimals of scores beside one another: enough to tell different ones apart."""

from collections.abc import Iterable
from typing import Final

FEWEST: Final = 4
MOST: Final = 6  # beyond are the digits of summation in another order


def score_decimals(scores: Iterable[float]) -> int:
    """Return the fewest decimals, four to six, to tell different scores apart."""
    different = {f"{score:.{MOST}f}" for score in scores}
    return next(
        decimals
        for decimals in range(FEWEST, MOST + 1)
        if len({f"{float(score):.{decimals}f}" for score in different}) == len(different)
    )
