from dataclasses import replace

import pytest

from lmtrain.accounting.fleets.fleet import FleetRun, solve
from lmtrain.accounting.fleets.fleet_plan import FleetPlan, found_terms, solve_in_whole_devices, without_limits
from lmtrain.accounting.machine.hardware import find_device

H100 = find_device("NVIDIA H100 80GB HBM3")
RUN = FleetRun(peak_flops=989.4e12, num_parameters=12.63e9, tokens=252.7e9, num_devices=32, mfu=0.5)
PLAN = FleetPlan(run=solve(RUN), found=("hours",), peak_source="table", device=H100)


def test_memory_alone_would_allow_a_far_larger_model_than_compute():
    assert PLAN.most_parameters == pytest.approx(160e9)
    assert PLAN.run.hours == pytest.approx(14 * 24, rel=1e-3)


@pytest.mark.parametrize(("num_parameters", "devices"), [(70e9, 14), (405e9, 81)])
def test_state_of_sixteen_bytes_needs_the_known_devices(num_parameters, devices):
    plan = replace(PLAN, run=replace(PLAN.run, num_parameters=num_parameters))
    assert plan.fewest_devices == devices
    assert plan.static_bytes == 16 * num_parameters


def test_an_unknown_device_has_neither_memory_nor_energy():
    plan = replace(PLAN, device=None)
    assert (plan.fewest_devices, plan.most_parameters, plan.kwh) == (None, None, None)
    assert plan.is_possible


def test_energy_is_the_rated_power_of_all_devices():
    assert PLAN.kwh == pytest.approx((PLAN.run.hours or 0) * 32 * 0.7)


def test_limits_of_time_and_money_are_held_against_what_the_run_takes():
    hours = PLAN.run.hours or 0
    assert not replace(PLAN, allowed_hours=hours).problems
    assert "does not finish" in replace(PLAN, allowed_hours=hours / 2).problems[0]
    priced = replace(PLAN, run=solve(replace(RUN, usd_per_gpu_hour=2.0)))
    assert "it costs" in replace(priced, allowed_usd=100.0).problems[0]


def test_time_and_money_are_limits_where_everything_else_is_known():
    assert without_limits(replace(RUN, hours=5.0, usd=3.0)) == RUN
    assert without_limits(replace(RUN, usd=3.0)) == RUN
    assert without_limits(replace(RUN, tokens=None, hours=5.0)).hours == 5.0


def test_money_is_a_limit_without_devices_too():
    priced = replace(RUN, num_devices=None, usd_per_gpu_hour=2.0)
    assert without_limits(replace(priced, usd=1e9)) == priced
    assert without_limits(replace(priced, usd=1e9, tokens=None)).usd == 1e9
    assert without_limits(replace(priced, usd=1e9, mfu=None)).usd == 1e9
    plan = replace(PLAN, run=solve(priced), allowed_usd=100.0)
    assert (plan.most_parameters, plan.to_json()["days"]) == (None, None)
    (line,) = plan.problems
    assert "it costs" in line


def test_a_range_of_utilization_is_judged_by_its_lowest():
    low, middle, high = (solve(replace(RUN, mfu=mfu)) for mfu in (0.4, 0.5, 0.6))
    plan = replace(PLAN, run=middle, over_mfu=(low, middle, high), allowed_hours=(middle.hours or 0) * 1.01)
    (line,) = plan.problems
    assert line.startswith("at 0.4 MFU it does not finish")
    assert not replace(plan, allowed_hours=(low.hours or 0) * 1.01).problems


def test_less_work_is_of_the_term_that_was_given():
    given = {"flops": 6 * 12.63e9 * 252.7e9, "num_devices": 32.0, "mfu": 0.5}
    run = solve(FleetRun(peak_flops=989.4e12, **given))
    plan = replace(PLAN, run=run, given=frozenset(given), allowed_hours=100.0)
    word = plan.problems[0].rpartition(" ")[2]
    assert word.startswith("fleet.flops=5.6")
    less = solve(replace(RUN, num_parameters=None, tokens=None, flops=float(word.partition("=")[2])))
    assert 99 < (less.hours or 0) <= 100


def test_computed_terms_are_those_that_nothing_gave():
    for asked, found in (
        (RUN, {"hours"}),
        (replace(RUN, num_devices=None), {"device_hours"}),
        (replace(RUN, tokens=None, tokens_per_parameter=20), {"tokens", "hours"}),
        (replace(RUN, tokens=None, hours=336), {"tokens", "flops"}),
        (replace(RUN, num_parameters=None, tokens=None, flops=1e22), {"num_parameters", "tokens", "hours"}),
    ):
        assert set(found_terms(asked, solve(asked))) == found


def test_the_bytes_of_a_parameter_decide_how_much_fits():
    assert replace(PLAN, bytes_per_parameter=8).most_parameters == 2 * (PLAN.most_parameters or 0)


def test_devices_that_were_not_given_are_whole():
    run = solve_in_whole_devices(replace(RUN, num_devices=None, hours=100.0))
    assert run.num_devices == 108
    assert 0 < (run.hours or 0) < 100


def test_devices_that_money_and_time_pay_for_are_whole_and_within_both():
    paid = FleetRun(peak_flops=989.4e12, usd=1000, usd_per_gpu_hour=3, hours=24, mfu=0.4)  # 13.9 devices
    run = solve_in_whole_devices(paid)
    assert (run.num_devices, run.hours, run.usd) == (13, 24, pytest.approx(936))
    short = solve_in_whole_devices(replace(paid, usd=30))
    assert (short.num_devices, short.hours) == (1, pytest.approx(10))


@pytest.mark.parametrize(
    ("limits", "hours"),
    [
        ({"usd": 3000.0, "hours": 200.0}, 50),
        ({"usd": 3000.0, "hours": 20.0}, 20),
        ({"device_hours": 160.0, "hours": 200.0}, 20),
        ({"device_hours": 160.0, "usd": 3000.0}, 20),
        ({"device_hours": 1600.0, "usd": 3000.0, "hours": 100.0}, 50),
    ],
)
def test_the_shortest_of_time_money_and_device_hours_counts(limits, hours):
    asked = FleetRun(peak_flops=989.4e12, num_parameters=8e9, num_devices=8, mfu=0.5, usd_per_gpu_hour=7.5, **limits)
    assert solve(without_limits(asked)).hours == pytest.approx(hours)


@pytest.mark.parametrize(
    ("given", "found", "advice"),
    [
        ("num_parameters tokens num_devices", "hours", "fleet.num_devices=200 or with fleet.num_parameters=160B"),
        ("num_parameters tokens hours", "num_devices", "fleet.num_devices=200"),
        ("flops tokens num_devices", "num_parameters", "fleet.num_devices=200"),
        ("tokens num_devices hours", "num_parameters flops", "fleet.num_parameters=160B"),
        ("tokens hours usd", "num_parameters flops num_devices", "fleet.num_devices=32 fleet.num_parameters=160B"),
    ],
)
def test_what_fits_is_neither_undone_by_other_terms_nor_against_them(given, found, advice):
    large = replace(PLAN, run=replace(PLAN.run, num_parameters=1e12))
    (line,) = replace(large, given=frozenset(given.split()), found=tuple(found.split())).problems
    assert line == f"does not fit: 16,000.0 GB before activations on 32 devices; it would with {advice}"
    (line,) = replace(large, given=frozenset(given.split()), found=tuple(found.split()), model="big").problems
    in_its_place = "160B in place of model=big"  # both together would be two models
    assert line.endswith(advice.replace("160B", in_its_place))


def test_less_of_a_ratio_is_above_zero():
    ratio = replace(PLAN, given=frozenset({"num_parameters", "tokens_per_parameter"}), allowed_hours=1.0)
    assert ratio.problems[0].endswith("fleet.tokens_per_parameter=0.0595")  # of 20.008, in 1 of 336 hours


def test_device_hours_are_a_limit_where_the_work_is_known():
    granted = replace(RUN, device_hours=1000)
    assert without_limits(granted) == RUN
    assert without_limits(replace(granted, tokens=None, num_devices=None)).device_hours == 1000
    (line,) = replace(PLAN, allowed_device_hours=1000).problems
    assert "of 1,000 device hours; those are enough for fleet.tokens=2" in line
    assert not replace(PLAN, allowed_device_hours=PLAN.run.device_hours).problems
    assert found_terms(replace(granted, mfu=None), solve(replace(granted, device_hours=2e4, mfu=None))) == (
        "hours",
        "mfu",
    )


def test_json_has_what_scripts_rely_on():
    keys = {"num_parameters", "tokens", "num_devices", "hours", "days", "mfu", "usd", "flops", "ok", "advice", "found"}
    assert keys <= PLAN.to_json().keys()
