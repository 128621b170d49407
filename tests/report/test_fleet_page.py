from dataclasses import replace

from lmtrain.accounting.fleets.fleet import solve
from lmtrain.report.fleet_page import text_of
from tests.accounting.fleets.test_fleet_plan import PLAN, RUN


def test_the_computed_term_is_marked():
    (line,) = [line for line in text_of(PLAN).splitlines() if "computed" in line]
    assert line.startswith("  time")


def test_a_price_that_is_missing_is_no_zero():
    assert "set fleet.usd_per_gpu_hour" in text_of(PLAN)
    assert "$0" not in text_of(PLAN)
    priced = replace(PLAN, run=solve(replace(RUN, usd_per_gpu_hour=3.0)))
    assert "$32,2" in text_of(priced)


def test_an_assumption_and_a_count_are_named():
    assert "(assumed; fleet.mfu states another)" in text_of(replace(PLAN, mfu_is_assumed=True))
    known = replace(PLAN, run=replace(PLAN.run, flops_per_token=8e10), model="mine", context_tokens=4096)
    assert "PaLM's count at 4096 tokens of context" in text_of(known)
    assert "6 x parameters a token" in text_of(PLAN)


def test_what_does_not_finish_comes_last():
    assert "does not finish" in text_of(replace(PLAN, allowed_hours=1.0)).splitlines()[-2]
