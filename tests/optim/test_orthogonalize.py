"""Singular values land in the published bands, vectors stay, and rows come out even."""

import pytest
import torch

from lmtrain.optim.orthogonalize import NEWTON_SCHULZ, POLAR_EXPRESS, even_rows, mean_squares_shape, orthogonalize


def matrix_with_singular_values(values: torch.Tensor, num_rows: int, num_columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(num_rows, len(values), generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(num_columns, len(values), generator=generator, dtype=torch.float64))
    return (u * values) @ v.mT


@pytest.mark.parametrize(
    ("quintics", "smallest", "low", "high"),
    [(POLAR_EXPRESS, 2e-3, 0.84, 1.13), (NEWTON_SCHULZ, 6e-3, 0.68, 1.21)],
    ids=["polar_express", "newton_schulz"],
)
@pytest.mark.parametrize(("num_rows", "num_columns"), [(32, 32), (48, 32), (32, 80)])
def test_singular_values_land_in_the_published_band(
    quintics: tuple[tuple[float, float, float], ...], smallest: float, low: float, high: float,
    num_rows: int, num_columns: int,
) -> None:  # fmt: skip
    values = torch.logspace(0, torch.log10(torch.tensor(smallest)).item(), 32, dtype=torch.float64)
    matrix = matrix_with_singular_values(values / values.norm(), num_rows, num_columns) * 7  # any scale
    result = orthogonalize(matrix[None], quintics=quintics, dtype=torch.float64)[0]
    found = torch.linalg.svdvals(result)
    assert low < found.min() < found.max() < high


def test_singular_vectors_are_kept() -> None:
    matrix = matrix_with_singular_values(torch.linspace(1, 0.5, 8, dtype=torch.float64), 12, 8)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    mixed = u.mT @ orthogonalize(matrix[None], quintics=POLAR_EXPRESS, dtype=torch.float64)[0].double() @ vh.mT
    torch.testing.assert_close(mixed, mixed.diagonal().diag(), rtol=0, atol=1e-6)  # the result is fp32


def test_bf16_stays_near_the_band() -> None:
    matrix = torch.randn(4, 64, 32, generator=torch.Generator().manual_seed(0))
    found = torch.linalg.svdvals(orthogonalize(matrix, quintics=POLAR_EXPRESS))
    assert 0.8 < found.min() < found.max() < 1.2  # bf16 has three digits


def test_stacked_equals_one_by_one() -> None:
    matrices = torch.randn(5, 16, 24, generator=torch.Generator().manual_seed(0))
    together = orthogonalize(matrices, quintics=POLAR_EXPRESS, dtype=torch.float32)
    apart = torch.cat([orthogonalize(m[None], quintics=POLAR_EXPRESS, dtype=torch.float32) for m in matrices])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)


def test_zero_matrix_stays_zero() -> None:
    assert orthogonalize(torch.zeros(1, 4, 4), quintics=POLAR_EXPRESS).abs().max() == 0


@pytest.mark.parametrize(("num_rows", "num_columns", "axis"), [(24, 8, 1), (8, 8, 1), (8, 24, 0)])
def test_even_rows_evens_the_longer_side_and_keeps_the_norm(num_rows: int, num_columns: int, axis: int) -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(2, num_rows, num_columns, generator=generator)
    matrices = matrices * torch.logspace(-1, 1, matrices.shape[2 - axis]).unsqueeze(axis)
    zeros = torch.zeros(2, *mean_squares_shape(num_rows, num_columns))
    evened, mean_squares = even_rows(matrices, zeros, beta=0.0)
    sizes = evened.norm(dim=axis + 1)
    torch.testing.assert_close(sizes / sizes.mean(dim=1, keepdim=True), torch.ones_like(sizes))
    torch.testing.assert_close(evened.norm(dim=(1, 2)), matrices.norm(dim=(1, 2)))
    torch.testing.assert_close(mean_squares.squeeze(axis + 1), matrices.square().mean(dim=axis + 1))
