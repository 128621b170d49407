"""muP: factors on the settings of a narrow model for a wide one.

Tensor Programs V (arXiv 2203.03466), table 3: matrices inside the model start with a variance of 1 / width and move by
1 / width under Adam; the head starts with a spread and moves by 1 / width; tables and vectors stay as they are; scores
of attention are divided by the head width instead of its root. An orthogonalised update has the same spectral norm at
any width, as a matrix needs (arXiv 2310.17813): under Muon matrices keep their rate.
"""

from dataclasses import dataclass
from typing import Literal

Update = Literal["coordinates", "spectrum"]  # a step makes each number of a matrix alike, or each singular value


@dataclass(frozen=True, kw_only=True)
class WidthTransfer:
    """Factors on each setting of the base; all are 1 at its width.

    `weight_decay` is per unit of learning rate: it grows as rates shrink: a step forgets as much as before.
    `attention` multiplies scores next to 1 / sqrt(head width).
    """

    matrix_init_std: float
    head_init_std: float
    matrix_lr: float
    head_lr: float
    weight_decay: float
    attention: float


def width_transfer(
    width: int, *, base_width: int, head_width: int, base_head_width: int, update: Update
) -> WidthTransfer:
    """Return the factors from a base to a width; all other widths are taken to grow in proportion."""
    share = base_width / width
    matrix_lr = share if update == "coordinates" else 1.0
    return WidthTransfer(
        matrix_init_std=share**0.5,
        head_init_std=share,
        matrix_lr=matrix_lr,
        head_lr=share,
        weight_decay=1 / matrix_lr,
        attention=(base_head_width / head_width) ** 0.5,
    )
