"""Singular values land in the published bands, vectors stay, and rows come out even."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtrain.optim.muon_update import (
    NEWTON_SCHULZ,
    POLAR_EXPRESS,
    Quintic,
    mean_squares,
    mean_squares_shape,
    orthogonalize,
    row_scales,
)

BANDS = [(POLAR_EXPRESS, 2e-3, 0.84, 1.13), (NEWTON_SCHULZ, 6e-3, 0.68, 1.21)]  # smallest value, published band


def matrix_with_singular_values(values: torch.Tensor, num_rows: int, num_columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(num_rows, len(values), generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(num_columns, len(values), generator=generator, dtype=torch.float64))
    return (u * values) @ v.mT


@pytest.mark.parametrize(("quintics", "smallest", "low", "high"), BANDS, ids=["polar_express", "newton_schulz"])
@given(short=st.integers(2, 32), longer_by=st.integers(0, 50), is_tall=st.booleans(), scale=st.floats(1e-3, 1e3))
@settings(max_examples=25, deadline=None)
def test_singular_values_land_in_the_published_band(
    quintics: tuple[Quintic, ...], smallest: float, low: float, high: float,
    short: int, longer_by: int, is_tall: bool, scale: float,
) -> None:  # fmt: skip
    num_rows, num_columns = (short + longer_by, short) if is_tall else (short, short + longer_by)
    values = torch.logspace(0, torch.log10(torch.tensor(smallest)).item(), short, dtype=torch.float64)
    matrix = matrix_with_singular_values(values / values.norm(), num_rows, num_columns) * scale
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
    found = torch.linalg.svdvals(orthogonalize(matrix, quintics=POLAR_EXPRESS).float())
    assert 0.8 < found.min() < found.max() < 1.2  # bf16 has three digits


def test_stacked_equals_one_by_one() -> None:
    matrices = torch.randn(5, 16, 24, generator=torch.Generator().manual_seed(0))
    together = orthogonalize(matrices, quintics=POLAR_EXPRESS, dtype=torch.float32)
    apart = torch.cat([orthogonalize(m[None], quintics=POLAR_EXPRESS, dtype=torch.float32) for m in matrices])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)


def test_zero_matrix_stays_zero() -> None:
    assert orthogonalize(torch.zeros(1, 4, 4), quintics=POLAR_EXPRESS).abs().max() == 0


@pytest.mark.parametrize(("num_rows", "num_columns", "axis"), [(24, 8, 1), (8, 8, 1), (8, 24, 0)])
def test_row_scales_even_the_longer_side_and_keeps_the_norm(num_rows: int, num_columns: int, axis: int) -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(2, num_rows, num_columns, generator=generator)
    matrices = matrices * torch.logspace(-1, 1, matrices.shape[2 - axis]).unsqueeze(axis)
    by_rows = num_rows >= num_columns
    zeros = torch.zeros(2, *mean_squares_shape(num_rows, num_columns, by_rows=by_rows))
    now = mean_squares(matrices, by_rows=by_rows)
    scales, running = row_scales(now, zeros, beta=0.0)
    evened = matrices * scales
    sizes = evened.norm(dim=axis + 1)
    torch.testing.assert_close(sizes / sizes.mean(dim=1, keepdim=True), torch.ones_like(sizes))
    torch.testing.assert_close(evened.norm(dim=(1, 2)), matrices.norm(dim=(1, 2)))
    torch.testing.assert_close(running, now)
    torch.testing.assert_close(now.squeeze(axis + 1), matrices.square().mean(dim=axis + 1))


def test_row_sizes_fade_by_beta() -> None:
    now, running = torch.full((1, 3, 1), 4.0), torch.full((1, 3, 1), 1.0)
    assert row_scales(now, running, beta=0.75).running.flatten().tolist() == [1.75] * 3
