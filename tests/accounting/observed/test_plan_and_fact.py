import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.observed.plan_vs_actual import UTILIZATION, explain
from lmtrain.accounting.observed.time_accounts import TimeBalance


def explained(seconds, *, planned_seconds=10.0):
    return explain(
        TimeBalance(seconds=seconds, num_attempts=1),
        planned_seconds=planned_seconds,
        planned_mfu=0.4,
        mfu_source="assumed",
    )


def test_what_the_plan_does_not_have_and_a_lower_utilization_explain_the_difference():
    found = explained({"setup": 3.0, "compute": 20.0, "lost": 5.0})
    assert found.difference_seconds == pytest.approx(18.0)
    assert found.reasons == {UTILIZATION: 10.0, "lost": 5.0, "setup": 3.0}
    assert list(found.reasons) == [UTILIZATION, "lost", "setup"], "the largest first"
    assert found.mfu == pytest.approx(0.2)


def test_a_start_that_was_planned_is_a_reason_only_by_what_it_took_more():
    balance = TimeBalance(seconds={"setup": 3.0, "compute": 10.0}, num_attempts=1)
    found = explain(balance, planned_seconds=10.0, planned_mfu=0.4, mfu_source="measured", planned_setup_seconds=2.0)
    assert (found.planned_seconds, found.seconds, found.mfu) == (12.0, 13.0, pytest.approx(0.4))
    assert found.reasons == {"setup": 1.0, UTILIZATION: 0.0}


def test_a_run_that_is_faster_than_planned_has_a_negative_reason():
    found = explained({"compute": 8.0})
    assert found.reasons == {UTILIZATION: -2.0}
    assert (found.mfu, found.difference_seconds) == (pytest.approx(0.5), pytest.approx(-2.0))


@given(
    st.dictionaries(st.sampled_from(["setup", "compile", "compute", "data_wait", "lost"]), st.floats(0, 1e6)),
    st.floats(1e-3, 1e6),
)
def test_the_reasons_are_the_whole_difference(seconds, planned_seconds):
    found = explained(seconds, planned_seconds=planned_seconds)
    assert sum(found.reasons.values()) == pytest.approx(found.difference_seconds, abs=1e-6)
