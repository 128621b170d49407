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


@given(
    st.dictionaries(st.sampled_from(["setup", "compile", "compute", "data_wait", "lost"]), st.floats(0, 1e6)),
    st.floats(1e-3, 1e6),
)
def test_the_reasons_are_the_whole_difference(seconds, planned_seconds):
    found = explained(seconds, planned_seconds=planned_seconds)
    assert sum(found.reasons.values()) == pytest.approx(found.difference_seconds, abs=1e-6)
