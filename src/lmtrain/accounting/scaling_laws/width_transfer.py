"""muP: what multiplies the settings of a narrow model so that they are as good for a wide one.

Tensor Programs V (arXiv 2203.03466), table 3: matrices inside the model start with a variance of 1 / width and move by
1 / width under Adam; the head starts with a spread and moves by 1 / width; tables and vectors stay as they are; scores
of attention are divided by the head width instead of its root. An orthogonalised update has the same spectral norm at
any width, which is what a matrix needs (arXiv 2310.17813): under Muon matrices keep their rate.
"""

from dataclasses import dataclass
from typing import Final, Literal

Update = Literal["coordinates", "spectrum"]

# How large an optimizer makes the step of a matrix: each of its numbers alike, or each of its singular values.
UPDATES: Final[dict[str, Update]] = {
    "adamw": "coordinates",
    "adamw_8bit": "coordinates",
    "schedule_free": "coordinates",
    "lion": "coordinates",
    "rmsprop": "coordinates",
    "adagrad": "coordinates",
    "muon": "spectrum",
}
UNDEFINED: Final[dict[str, str]] = {
    "sgd": "its steps grow with the gradients, whose size changes with width, of scalars otherwise than of tables",
    "momentum": "its steps grow with the gradients, whose size changes with width, of scalars otherwise than of tables",
    "adafactor": "its steps are shares of a tensor's own size, which width changes already",
}
# These add decay to the gradient, beside which its strength changes with width: without a rule unless it is 0.
DECAY_IN_GRADIENT: Final = frozenset({"rmsprop", "adagrad"})


@dataclass(frozen=True, kw_only=True)
class WidthTransfer:
    """What multiplies each setting of the base; all are 1 at its width.

    `weight_decay` is per unit of learning rate: it grows as rates shrink, so that a step forgets as much as before.
    `attention` multiplies scores beside 1 / sqrt(head width).
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
    """Return the factors from a base to a width; everything else that is wide is taken to grow in proportion."""
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
