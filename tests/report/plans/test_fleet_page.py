from dataclasses import replace

import pytest

from lmtrain.accounting.fleets.fleet import solve
from lmtrain.report.plans.fleet_page import text_of
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
    at_peak = replace(PLAN, run=solve(replace(RUN, mfu=1.0)))
    assert "100.0% (40% is a well-tuned run's)" in text_of(at_peak)
    assert "well-tuned" not in text_of(PLAN)


def test_a_limit_beside_another_amount_is_named():
    priced = replace(PLAN, run=solve(replace(RUN, usd_per_gpu_hour=3.0)))
    assert "a device and hour; the limit is $50,000.00" in text_of(replace(priced, allowed_usd=50_000.0))
    assert " hours); the limit is 9,000 hours" in text_of(replace(priced, allowed_hours=9_000.0))
    assert "the limit" not in text_of(replace(priced, allowed_usd=priced.run.usd, allowed_hours=priced.run.hours))


def test_what_does_not_finish_comes_last():
    assert "does not finish" in text_of(replace(PLAN, allowed_hours=1.0)).splitlines()[-2]


def test_a_range_of_utilization_is_a_row_each_of_the_terms_that_move():
    runs = tuple(solve(replace(RUN, mfu=mfu, usd_per_gpu_hour=3.0)) for mfu in (0.25, 0.5, 1.0))
    lines = text_of(replace(PLAN, run=runs[1], over_mfu=runs)).splitlines()
    assert "  MFU             50.0% (of a range, 25.0% to 100.0%)" in lines
    first = lines.index("Over the range of MFU") + 1
    days = [float(line.split()[1]) for line in lines[first : first + 3]]
    assert days == pytest.approx([days[1] * 2, days[1], days[1] / 2], rel=1e-3)
    assert all(line.count("$") == 1 for line in lines[first : first + 3])


def test_a_range_that_moves_the_model_alone_is_shown():
    runs = tuple(solve(replace(RUN, num_parameters=None, hours=336, mfu=mfu)) for mfu in (0.25, 0.5, 1.0))
    lines = text_of(replace(PLAN, run=runs[1], over_mfu=runs)).splitlines()
    row = lines[lines.index("Over the range of MFU") + 1]
    assert row.split() == ["25.0%", "6.3B", "parameters"]


def test_a_run_without_devices_says_what_sets_them():
    text = text_of(replace(PLAN, run=solve(replace(RUN, num_devices=None))))
    assert "devices         any number x 989.4 TFLOP/s" in text
    assert "time            by the devices: fleet.num_devices or fleet.days sets it" in text


def test_a_thousand_tokens_a_parameter_are_no_power_of_ten():
    assert "1,875 a parameter" in text_of(
        replace(PLAN, run=solve(replace(RUN, num_parameters=8e9, tokens=15e12, num_devices=None)))
    )


def test_the_precision_behind_the_bytes_is_named():
    text = text_of(replace(PLAN, precision="bf16_true", bytes_per_parameter=8))
    assert "101.0 GB sharded, at 8 bytes a parameter before activations" in text
    assert "AdamW's moments of precision=bf16_true" in text
