import numpy as np
import pytest

from lmtrain.accounting.scaling_laws.compute_optimal import REPLICATION
from lmtrain.errors import DataError
from lmtrain.report.scaling.isoflop_minima import isoflop_fit
from lmtrain.report.scaling.law_fit import LawPoint, optimum


def cells(flops: float, factors: object) -> list[LawPoint]:
    best, _ = optimum(REPLICATION, flops)
    return [
        LawPoint(num_parameters=size, tokens=flops / (6 * size), loss=REPLICATION.loss(size, flops / (6 * size)))
        for size in best * np.asarray(factors)
    ]


def test_the_minima_and_their_law_are_those_of_a_known_surface() -> None:
    fit = isoflop_fit({flops: cells(flops, [0.4, 0.7, 1.2, 2.0, 3.5]) for flops in (1e18, 1e19, 1e20)})
    for found in fit.minima:
        assert found.num_parameters == pytest.approx(optimum(REPLICATION, found.flops)[0], rel=0.05)
    alpha, beta = REPLICATION.parameters_exponent, REPLICATION.tokens_exponent
    assert fit.law is not None
    assert fit.law.exponent == pytest.approx(beta / (alpha + beta), abs=0.01)
    assert fit.law.num_parameters(1e21) == pytest.approx(optimum(REPLICATION, 1e21)[0], rel=0.1)


def test_a_budget_without_a_minimum_within_its_sizes_is_left_out_and_all_such_are_refused() -> None:
    small, few = cells(1e18, [0.1, 0.2, 0.4]), cells(1e19, [0.5, 2.0])
    fit = isoflop_fit({1e17: cells(1e17, [1.0]), 1e18: small, 1e19: few, 1e20: cells(1e20, [0.3, 1.0, 3.0])})
    assert fit.left_out["1e+17"] == "1 size, it needs 3"
    assert fit.law is None
    assert fit.left_out["1e+18"].startswith("the largest model")
    assert fit.left_out["1e+19"] == "2 sizes, it needs 3"
    with pytest.raises(
        DataError, match=r"No budget has a best size within its models: 1e\+18 FLOPs: the largest model"
    ):
        isoflop_fit({1e18: small})
