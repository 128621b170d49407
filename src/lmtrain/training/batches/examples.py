"""Rows that belong together, as a rule on the order of examples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

Order = Callable[[NDArray[np.int64]], NDArray[np.int64]]


@final
@dataclass(frozen=True, kw_only=True)
class Examples:
    """An example is `rows_together` neighbouring rows, or `copies` of one; the same rows serve `num_uses` steps."""

    rows_together: int = 1
    copies: int = 1
    num_uses: int = 1

    def ordered(self, order: Order, *, rows_per_step: int) -> Order:
        """Return the rows at positions, from the `order` of examples."""
        if self == Examples():
            return order

        def rows_at(positions: NDArray[np.int64]) -> NDArray[np.int64]:
            if self.num_uses > 1:
                steps, places = np.divmod(positions, rows_per_step)
                positions = steps // self.num_uses * rows_per_step + places
            places = positions // self.copies
            together = self.rows_together
            return order(places // together) * together + places % together

        return rows_at
