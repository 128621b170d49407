"""Replace matrices by nearly orthogonal ones, with matrix products only, and even out the sizes of their rows.

 Newton-Schulz with one tuned quintic: https://kellerjordan.github.io/posts/muon. Polar Express, the best quintic for
each iteration in turn: https://arxiv.org/abs/2505.16932, section 4. Row normalisation:
https://arxiv.org/abs/2510.05491. Shapes: N matrices of R rows and C columns.
"""

from typing import NamedTuple

import torch
from torch import Tensor

Quintic = tuple[float, float, float]

# Singular values from 0.003 to 1 end in [0.68, 1.21].
NEWTON_SCHULZ: tuple[Quintic, ...] = ((3.4445, -4.7750, 2.0315),) * 5
# Rounding in bf16 may lift a singular value past 1, where Polar Express diverges: it is fed x / MARGIN.
MARGIN = 1.01
# Singular values from 0.001 to 1 end in [0.84, 1.13]: the published minimax band, widened by MARGIN.
POLAR_EXPRESS: tuple[Quintic, ...] = tuple(
    (a / MARGIN, b / MARGIN**3, c / MARGIN**5)
    for a, b, c in (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    )
)
QUINTICS = {"polar_express": POLAR_EXPRESS, "newton_schulz": NEWTON_SCHULZ}


class RowScales(NamedTuple):
    """Factors to even out the rows (or columns, whichever are more) of matrices, and the mean squares used."""

    scales: Tensor
    running: Tensor


def orthogonalize(matrices: Tensor, *, quintics: tuple[Quintic, ...], dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Move every singular value to about 1, keeping the singular vectors: [N, R, C] -> [N, R, C].

    `dtype` is the products' format and the result's.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices  # the Gram matrix of the short side is the small one
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) * MARGIN + 1e-7)).to(dtype)
    for a, b, c in quintics:
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


def mean_squares(matrices: Tensor, *, by_rows: bool) -> Tensor:
    """Return the mean square of each row in float32, [N, R, C] -> [N, R, 1], or of each column."""
    return matrices.float().square().mean(dim=-1 if by_rows else -2, keepdim=True)


def row_scales(now: Tensor, running: Tensor, *, beta: float) -> RowScales:
    """Return factors to divide rows by their running root mean square at the same norm of each matrix.

    `now` are the matrices' `mean_squares`; `running` those of earlier steps, fading by `beta` a step.
    """
    running = torch.lerp(running, now, 1 - beta)
    scales = running.clamp_min(1e-10).rsqrt()
    evened = (now * scales.square()).sum(dim=(-2, -1), keepdim=True)
    return RowScales(scales * (now.sum(dim=(-2, -1), keepdim=True) / evened.clamp_min(1e-20)).sqrt(), running)


def mean_squares_shape(num_rows: int, num_columns: int, *, by_rows: bool) -> tuple[int, int]:
    """Return the shape of the running mean squares of a [num_rows, num_columns] matrix."""
    return (num_rows, 1) if by_rows else (1, num_columns)
