import numpy as np
import pytest

from lmtrain.accounting.scaling_laws.compute_optimal import REPLICATION
from lmtrain.errors import DataError
from lmtrain.report.scaling.law_fit import LawPoint, fit_law, optimum


def points_of(noise: float, *, seed: int = 0) -> list[LawPoint]:
    """Losses of the published law (arXiv 2404.10102) on iso-FLOP cells, with noise of their logarithm."""
    generator = np.random.default_rng(seed)
    return [
        LawPoint(
            num_parameters=size,
            tokens=flops / (6 * size),
            loss=REPLICATION.loss(size, flops / (6 * size)) * float(np.exp(noise * generator.standard_normal())),
        )
        for flops in (1e18, 1e19, 1e20, 1e21)
        for size in np.geomspace(0.1, 10, 7) * (flops / 120) ** 0.5
    ]


def test_a_known_law_is_recovered_from_exact_points() -> None:
    found = fit_law(points_of(0.0), num_draws=2).surface
    assert found.irreducible == pytest.approx(REPLICATION.irreducible, rel=1e-3)
    assert found.parameters_exponent == pytest.approx(REPLICATION.parameters_exponent, rel=1e-3)
    assert found.tokens_exponent == pytest.approx(REPLICATION.tokens_exponent, rel=1e-3)


def test_a_known_law_lies_in_the_band_of_noisy_points_and_so_does_its_prediction() -> None:
    fit = fit_law(points_of(0.002), num_draws=60)
    for name in ("irreducible", "parameters_exponent", "tokens_exponent"):
        low, high = fit.band(lambda surface, name=name: getattr(surface, name))
        assert low <= getattr(REPLICATION, name) <= high, name
    flops = 1e22  # ten times the largest
    true = REPLICATION.loss(*optimum(REPLICATION, flops))
    low, high = fit.band(lambda surface: surface.loss(*optimum(surface, flops)))
    assert low <= true <= high
    assert high - low < 0.1 * true


def test_the_optimum_is_the_lowest_of_its_neighbours() -> None:
    size, tokens = optimum(REPLICATION, 1e21)
    assert 6 * size * tokens == pytest.approx(1e21)
    best = REPLICATION.loss(size, tokens)
    assert all(REPLICATION.loss(size * by, tokens / by) > best for by in (0.9, 1.1))


def test_too_few_runs_and_runs_of_one_size_are_refused() -> None:
    with pytest.raises(DataError, match="6 finished runs are too few"):
        fit_law(points_of(0.0)[:6])
    with pytest.raises(DataError, match="1 different values of size"):
        fit_law([LawPoint(num_parameters=1e6, tokens=1e6 * n, loss=3.0) for n in range(1, 9)])
