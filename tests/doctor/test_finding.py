import pytest

from lmtrain.doctor.finding import Finding, graded


def test_a_finding_that_is_not_well_needs_a_fix():
    with pytest.raises(AssertionError):
        Finding(name="disk", state="bad", found="full")


def test_the_worse_grade_wins_and_a_good_one_has_no_fix():
    assert graded("a", "b", fix="c").fix == ""
    assert graded("a", "b", fix="c", is_worse=True).state == "warn"
    assert graded("a", "b", fix="c", is_worse=True, is_bad=True).to_json() == {
        "name": "a",
        "state": "bad",
        "found": "b",
        "fix": "c",
    }
