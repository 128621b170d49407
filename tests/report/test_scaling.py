"""Scaling laws: a known law is recovered, its bands hold, minima and chart."""

import numpy as np
import pytest

from lmtrain.accounting.scaling_laws.compute_optimal import REPLICATION
from lmtrain.errors import DataError
from lmtrain.report.scaling_law import LawPoint, fit_law, isoflop_fit, optimum


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


def test_too_few_runs_and_runs_of_one_size_are_refused() -> None:
    with pytest.raises(DataError, match="6 finished runs are too few"):
        fit_law(points_of(0.0)[:6])
    with pytest.raises(DataError, match="1 sizes and 8 numbers"):
        fit_law([LawPoint(num_parameters=1e6, tokens=1e6 * n, loss=3.0) for n in range(1, 9)])


def cells(flops: float, factors: object) -> list[LawPoint]:
    best, _ = optimum(REPLICATION, flops)
    return [
        LawPoint(num_parameters=size, tokens=flops / (6 * size), loss=REPLICATION.loss(size, flops / (6 * size)))
        for size in best * np.asarray(factors)
    ]


def test_the_minima_are_those_of_a_known_surface() -> None:
    fit = isoflop_fit({flops: cells(flops, [0.4, 0.7, 1.2, 2.0, 3.5]) for flops in (1e18, 1e19, 1e20)})
    for found in fit.minima:
        assert found.num_parameters == pytest.approx(optimum(REPLICATION, found.flops)[0], rel=0.05)
    assert len(fit.minima) == 3


def test_a_budget_without_a_minimum_within_its_sizes_is_left_out() -> None:
    small, few = cells(1e18, [0.1, 0.2, 0.4]), cells(1e19, [0.5, 2.0])
    fit = isoflop_fit({1e17: cells(1e17, [1.0]), 1e18: small, 1e19: few, 1e20: cells(1e20, [0.3, 1.0, 3.0])})
    assert fit.left_out["1e+17"] == "1 size, it needs 3"
    assert fit.left_out["1e+18"].startswith("the largest model")
    assert fit.left_out["1e+19"] == "2 sizes, it needs 3"
