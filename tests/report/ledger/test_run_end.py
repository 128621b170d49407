import pytest

from lmtrain.accounting.observed.time_accounts import TimeBalance
from lmtrain.report.ledger.run_end import run_end

TIME = TimeBalance(seconds={"setup": 5.0, "compute": 10.0, "evaluation": 4.0}, num_attempts=1)
SPENT = {"step": 10, "steps_done": 10, "device_seconds": 38.0, "num_devices": 2}


@pytest.mark.parametrize(
    ("horizon", "passes", "left"),
    [
        ({"steps": 110}, None, 140.0),
        ({"steps": 110}, 2, 104.0),  # one pass of 4 s is over, one is left
        ({"steps": 110, "seconds": 49.0, "time_limit": "hours"}, 2, 30.0),
        ({"steps": 110, "seconds": 10.0, "time_limit": "hours"}, 2, 0.0),
        ({"steps": 110, "seconds": 39.0, "time_limit": "usd"}, 2, 20.0),
        ({}, None, 0.0),
    ],
)
def test_a_run_goes_on_for_its_steps_its_passes_and_no_longer_than_its_budget(horizon, passes, left):
    plan = {"horizon": horizon}
    if passes is not None:
        plan["evaluation"] = {"num_passes": passes, "tokens_per_pass": 100}
    assert run_end(plan, last_step=10).seconds_left(TIME, **SPENT) == pytest.approx(left)


def test_an_evaluation_of_another_form_is_not_known():
    for strange in (None, {}, {"num_passes": 2}, {"num_passes": 2, "tokens_per_pass": 9, "more": 1}):
        end = run_end({"horizon": {"steps": 110}, "evaluation": strange}, last_step=10)
        assert (end.evaluation is None) == (len(strange or {}) < 3)


def test_the_passes_due_by_a_step_are_whole_ones():
    end = run_end({"horizon": {"steps": 200}, "evaluation": {"num_passes": 5, "tokens_per_pass": 3000}}, last_step=200)
    pace = {"step_seconds": 0.1, "tokens_per_step": 100}  # 1 s a pass
    assert end.passes_seconds(first=0, last=6, **pace) == pytest.approx(1.0), "the one before the first step"
    assert end.passes_seconds(first=0, last=200, **pace) == pytest.approx(5.0)
    assert end.passes_seconds(first=100, last=200, **pace) == pytest.approx(2.0), "a fork from the middle"
    assert run_end({}, last_step=6).passes_seconds(first=0, last=6, **pace) == 0.0
