from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.fleets.fleet import FleetRun, solve
from lmtrain.cli.commands.fleet_terms import read_terms
from lmtrain.errors import ConfigurationError

H100 = 989.4e12
KNOWN = FleetRun(peak_flops=H100, num_parameters=8e9, tokens=160e9, num_devices=8, mfu=0.5, usd_per_gpu_hour=3.0)


def test_the_known_run_takes_the_known_time_and_money():
    run = solve(KNOWN)
    assert run.hours == pytest.approx(22.46 * 24, rel=1e-3)
    assert run.usd == pytest.approx(12_937, rel=1e-3)


@pytest.mark.parametrize("missing", ["num_parameters", "tokens", "num_devices", "hours", "mfu"])
def test_any_term_follows_from_the_others(missing):
    whole = solve(KNOWN)
    again = solve(replace(whole, **{missing: None, "usd": None}))
    assert getattr(again, missing) == pytest.approx(getattr(whole, missing), rel=1e-9)


@given(hours=st.floats(1, 1e5), devices=st.integers(1, 20_000), mfu=st.floats(0.01, 1.0))
def test_solving_for_tokens_and_back_for_hours_is_a_round_trip(hours, devices, mfu):
    there = solve(FleetRun(peak_flops=H100, num_parameters=1e9, num_devices=devices, hours=hours, mfu=mfu))
    back = solve(replace(there, hours=None))
    assert back.hours == pytest.approx(hours, rel=1e-9)


WORK = (
    ("num_parameters", "tokens"),
    ("num_parameters", "tokens_per_parameter"),
    ("tokens", "tokens_per_parameter"),
    ("flops", "num_parameters"),
    ("flops", "tokens"),
    ("flops", "tokens_per_parameter"),
)
SUPPLY = (("num_devices", "hours"), ("device_hours", "hours"), ("usd", "num_devices"), ("usd", "hours"))
SIZES = ("num_parameters", "tokens", "tokens_per_parameter")
BASES = (
    *((*work, *supply) for work in WORK for supply in SUPPLY),
    *((*work, "mfu", either) for work in WORK for either in ("num_devices", "hours")),
    *((size, "mfu", *supply) for size in SIZES for supply in SUPPLY),
)


@given(
    parameters=st.floats(1e6, 1e13),
    tokens=st.floats(1e6, 1e15),
    devices=st.integers(1, 100_000),
    mfu=st.floats(0.01, 1.0),
    base=st.sampled_from(BASES),
)
def test_all_terms_follow_from_each_set_of_them_that_is_enough(parameters, tokens, devices, mfu, base):
    priced = FleetRun(peak_flops=H100, usd_per_gpu_hour=2.5)
    whole = solve(replace(priced, num_parameters=parameters, tokens=tokens, num_devices=devices, mfu=mfu * 0.999))
    again = solve(replace(priced, **{name: getattr(whole, name) for name in base}))
    assert known(again) == pytest.approx(known(whole), rel=1e-9)


def known(run: FleetRun) -> dict[str, float]:
    return {name: value for name, value in run.to_json().items() if value is not None}


def test_work_is_six_flops_a_parameter_and_token():
    run = solve(FleetRun(peak_flops=H100, num_parameters=405e9, tokens=15.6e12, num_devices=16_000, mfu=0.4))
    assert run.flops == pytest.approx(3.7908e25)  # 6 x 405e9 x 15.6e12
    assert run.tokens_per_parameter == pytest.approx(38.5185, rel=1e-5)


def test_flops_alone_are_spent_at_twenty_tokens_a_parameter_unless_another_ratio_is_given():
    fleet = FleetRun(peak_flops=H100, flops=1.2e23, num_devices=8, mfu=0.5)
    assert solve(fleet).num_parameters == pytest.approx((1.2e23 / 120) ** 0.5)
    many = solve(replace(fleet, tokens_per_parameter=200))
    assert many.num_parameters == pytest.approx(1e10)
    assert many.tokens == pytest.approx(2e12)


def test_dollars_need_no_devices():
    run = solve(FleetRun(peak_flops=H100, usd=1e6, usd_per_gpu_hour=2, mfu=0.4))
    assert run.device_hours == 500_000
    assert run.flops == pytest.approx(500_000 * 3600 * H100 * 0.4)
    assert (run.num_devices, run.hours) == (None, None)
    paid = solve(FleetRun(peak_flops=H100, num_parameters=8e9, tokens=160e9, mfu=0.5, usd_per_gpu_hour=3))
    assert paid.usd == pytest.approx(12_937, rel=1e-4)  # as on eight devices


def test_dollars_stand_for_hours():
    whole = solve(KNOWN)
    from_dollars = solve(replace(KNOWN, tokens=None, usd=whole.usd))
    assert from_dollars.tokens == pytest.approx(160e9)
    assert from_dollars.hours == pytest.approx(whole.hours)


def test_a_fleet_and_a_time_alone_give_the_compute_optimal_model():
    run = solve(FleetRun(peak_flops=H100, num_devices=32, hours=14 * 24, mfu=0.5))
    assert run.num_parameters == pytest.approx(12.63e9, rel=1e-3)
    assert run.tokens == pytest.approx(252.7e9, rel=1e-3)


def test_exact_flops_take_the_place_of_six_times_the_parameters():
    run = solve(replace(KNOWN, num_parameters=None, flops_per_token=2 * 48e9))
    assert run.hours == pytest.approx(2 * 22.46 * 24, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": -1.0}, "tokens=-1.0 is not above 0"),
        ({"mfu": 1.5}, "mfu=1.5 is not above 0 and at most 1"),
        ({"mfu": None}, "hours and mfu are both unknown"),
        ({"usd": 5.0, "usd_per_gpu_hour": None}, "usd=5.0 needs a price"),
        ({"mfu": None, "hours": 1.0}, "more than the devices' peak"),
        ({"hours": 100.0}, r"contradict one another: flops = device hours .* 7\.68e\+21 and the other 1\.425e\+21"),
        ({"flops": 1e21}, "contradict one another: flops = 6 x num_parameters x tokens"),
        ({"tokens_per_parameter": 21.0}, "contradict one another: .*tokens_per_parameter"),
        ({"tokens": 1e31}, r"tokens=1e\+31 is beyond any run"),
        ({"tokens": None}, "tokens and hours are both unknown; give all but one"),
        ({"tokens": None, "num_devices": None}, "tokens, num_devices and hours are unknown"),
    ],
)
def test_impossible_terms_are_refused(change, message):
    with pytest.raises(ConfigurationError, match=message):
        solve(replace(KNOWN, **change))


MUCH = {"num_parameters": 70e9, "tokens": 15e12}
HELD = {"num_devices": 1024, "hours": 1440}


@pytest.mark.parametrize(
    ("terms", "nearest"),
    [
        ({**MUCH, **HELD}, ["tokens", "num_devices", "hours"]),
        ({"flops": 6.3e24, **HELD}, ["flops", "num_devices", "hours"]),
        (
            {"num_parameters": 70e9, "tokens_per_parameter": 200, **HELD},
            ["tokens_per_parameter", "num_devices", "hours"],
        ),
        ({**MUCH, "device_hours": 1e6}, ["tokens", "device_hours"]),
        ({**MUCH, "num_devices": 1024, "usd": 1e6, "usd_per_gpu_hour": 2.0}, ["tokens", "usd"]),
    ],
)
def test_what_is_nearest_to_a_utilization_above_one_can_be_typed(terms, nearest):
    run = FleetRun(peak_flops=989.4e12, **terms)
    with pytest.raises(ConfigurationError, match=r"nearest that can be, at 100% MFU: ") as refused:
        solve(run)
    at_peak, tuned = str(refused.value).partition("MFU: ")[2].rstrip(".").split("; at 40%, a well-tuned run's: ")
    for said, most in ((at_peak, 1), (tuned, 0.4)):
        words = said.split(", or ")
        assert [word.partition("=")[0] for word in words] == [f"fleet.{name}" for name in nearest]
        for word in words:
            assert 0.9 * most < (solve(replace(run, **read_terms([word]))).mfu or 2) <= most * (1 + 1e-9)
