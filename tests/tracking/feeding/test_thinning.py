import pytest

from lmtrain.tracking.feeding.thinning import MOST_POINTS, Thinning


def sent(thinning: Thinning, steps: range, *, key: str = "train/loss", before: int = -1) -> list[int]:
    """Return the steps kept of a curve, one after another as they are sent."""
    found: list[int] = []
    for step in steps:
        if thinning.keeps(key, step, before=found[-1] if found else before):
            found.append(step)
    return found


def test_a_short_curve_is_sent_whole() -> None:
    assert sent(Thinning({"steps": 1980, "tokens": 1980 * 512}, count=lambda key: 0), range(1981)) == [*range(1981)]


@pytest.mark.parametrize("horizon", [{"steps": 100_000}, {"steps": 3_000}, {}, {"steps": 5_000}])
def test_a_long_curve_is_spread_over_its_whole_length(horizon: dict[str, int]) -> None:
    kept: list[int] = []
    thinning = Thinning(horizon, count=lambda key: len(kept))
    for step in range(1, 100_001):
        if thinning.keeps("a", step, before=kept[-1] if kept else -1):
            kept.append(step)
    assert 1500 < len(kept) <= MOST_POINTS
    assert kept[0] == 1


def test_a_curve_that_went_on_after_a_longer_plan_stays_below_the_most() -> None:
    first = sent(Thinning({"steps": 10_000}, count=lambda key: 0), range(1, 10_001))
    longer = Thinning({"steps": 40_000}, count=lambda key: len(first))
    assert len(first) + len(sent(longer, range(10_001, 40_001), before=first[-1])) <= MOST_POINTS


def test_readings_of_a_node_are_not_divided_by_the_run_s_steps() -> None:
    kept = sent(Thinning({"steps": 100_000}, count=lambda key: 0), range(1000), key="system/cpu")
    assert kept == [*range(1000)]


def test_the_same_question_has_the_same_answer() -> None:
    thinning = Thinning({"steps": 20_000}, count=lambda key: 0)
    answers = [thinning.keeps("a", step, before=0) for step in range(1, 40)]
    assert answers == [thinning.keeps("a", step, before=0) for step in range(1, 40)]
    assert not all(answers)
