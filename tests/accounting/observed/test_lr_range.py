import math
import random

import pytest

from lmtrain.accounting.observed.lr_range import judge

SHARES = [0.001 * 10 ** (index / 20) for index in range(100)]  # to about 90


def losses(of, noise=0.01):
    draw = random.Random(1)
    return [(share, of(share) + draw.gauss(0, noise)) for share in SHARES]


def test_the_steepest_rate_lies_where_the_loss_falls_and_the_lowest_where_it_turns():
    found = judge(losses(lambda share: 6 - 3 / (1 + math.exp(-4 * math.log10(share))) + share**2 / 1e3), num_asked=100)
    assert found.problem is None
    assert found.steepest == pytest.approx(1.0, rel=2.0), "the middle of the fall, late by the mean's fading"
    assert found.lowest is not None
    assert found.steepest is not None
    assert found.steepest < found.lowest < 60
    assert found.broke is None


def test_a_break_is_told_with_its_rate_and_the_fall_before_it_counts():
    points = losses(lambda share: 6 - 2 * min(1.0, share))
    cut = [point for point in points if point[0] < 10] + [(10.0, math.nan)]
    found = judge(cut, num_asked=100)
    assert (found.broke, found.problem) == (10.0, None)
    assert found.steepest is not None
    assert 0.1 < found.steepest < 2


def test_a_loss_that_never_falls_or_breaks_at_once_suggests_nothing():
    flat = judge(losses(lambda share: 5.0), num_asked=100)
    assert (flat.steepest, str(flat.problem).split(";")[0]) == (None, "the loss never fell by more than its noise")
    rising = judge(losses(lambda share: 5.0 + share), num_asked=100)
    assert rising.steepest is None
    early = judge([(0.1, 5.0), (0.2, math.nan)], num_asked=100)
    assert "broke after 1 step," in str(early.problem)
    assert judge([], num_asked=100).steepest is None
