import math
import random
import statistics

import pytest

from lmtrain.report.comparing.spread import difference, spread, student_quantile


# Student's two-sided 95 % and 99 % points as statistical tables print them
@pytest.mark.parametrize(
    ("confidence", "freedom", "published"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.95, 4, 2.7764),
        (0.95, 30, 2.0423),
        (0.99, 1, 63.657),
        (0.99, 5, 4.0321),
    ],
)
def test_students_points_are_those_of_published_tables(confidence, freedom, published):
    assert student_quantile(confidence, freedom=freedom) == pytest.approx(published, rel=1e-4)


def test_many_degrees_of_freedom_are_the_normal_distribution():
    assert student_quantile(0.95, freedom=1e5) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), rel=1e-4)


def by_seed(*values, first=1):
    return {str(seed): value for seed, value in enumerate(values, start=first)}


def test_welchs_interval_is_that_of_its_definition():
    one = by_seed(20, 22, 19, 24, 25, 21, 23, 20, 22, 24)
    other = by_seed(18, 21, 17, 22, 23, 19, 18, 20, first=11)
    found = difference(one, other)
    errors = [statistics.variance(one.values()) / 10, statistics.variance(other.values()) / 8]
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / 9 + errors[1] ** 2 / 7)
    assert found.mean == pytest.approx(2.25)
    assert found.plus_minus == pytest.approx(student_quantile(0.95, freedom=freedom) * math.sqrt(sum(errors)))
    assert 7 < freedom < 16
    assert found.deviation == pytest.approx(
        math.hypot(statistics.stdev(one.values()), statistics.stdev(other.values()))
    )
    assert not found.is_paired


def test_the_same_seeds_are_compared_seed_by_seed():
    luck = [0.0, 5.0, -3.0]
    found = difference(by_seed(*(1.0 + x for x in luck)), by_seed(*(0.9 + x for x in luck)))
    assert found.is_paired
    assert (found.mean, found.plus_minus) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-9))
    # differences 0.1, 0.2, 0.3: deviation 0.1, 2 degrees of freedom
    noisy = difference(by_seed(1.1, 6.2, -1.7), by_seed(1.0, 6.0, -2.0))
    assert noisy.plus_minus == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    assert noisy.is_noise


def test_the_seeds_that_both_have_are_compared_and_too_few_of_them_are_not():
    many = by_seed(1.0, 2.0, 6.0)
    assert difference(by_seed(1.5), many).mean == pytest.approx(0.5), "seed 1 beside seed 1, not beside the mean of 3"
    two = difference(by_seed(1.5, 2.5), many)
    assert (two.mean, two.is_paired) == (pytest.approx(0.5), True)
    assert not difference(by_seed(5.0, 5.1, first=3), many).is_paired, "both have more seeds than the one they share"


@pytest.mark.parametrize("seeds", [1, 11])  # the same for both, or others
def test_an_interval_of_95_percent_holds_the_true_difference_that_often(seeds):
    rng = random.Random(0)
    held = 0
    for _ in range(200):
        one = by_seed(*(rng.gauss(1.0, 0.1) for _ in range(3)))
        other = by_seed(*(rng.gauss(0.0, 0.3) for _ in range(3)), first=seeds)
        found = difference(one, other)
        assert found.plus_minus is not None
        held += abs(found.mean - 1.0) <= found.plus_minus
    assert 0.90 <= held / 200 <= 0.995  # three standard errors of a share of 0.95 in 200


def test_one_value_has_no_deviation_and_its_difference_no_noise():
    alone = spread([2.0])
    assert (alone.num, alone.mean, alone.standard_deviation) == (1, 2.0, None)
    for other, mean in ((by_seed(1.0, 1.2), 1.0), (by_seed(1.5), 0.5)):
        found = difference(by_seed(2.0), other)
        assert (found.mean, found.plus_minus, found.is_noise) == (pytest.approx(mean), None, None)


def test_equal_repeats_leave_no_noise():
    found = difference(by_seed(2.0, 2.0), by_seed(1.0, 1.0, first=5))
    known = {"mean": 1.0, "plus_minus": 0.0, "is_paired": False, "is_noise": False}
    assert found.to_json() == {**known, "deviation": 0.0, "num_seeds": 2}
