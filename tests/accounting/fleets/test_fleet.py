from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.fleets.fleet import FleetRun, solve
from lmtrain.accounting.quantities import parse_quantity
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
        ({"hours": 100.0}, "contradict one another"),
    ],
)
def test_impossible_terms_are_refused(change, message):
    with pytest.raises(ConfigurationError, match=message):
        solve(replace(KNOWN, **change))


def test_what_is_nearest_to_a_utilization_above_one_can_be_typed():
    run = FleetRun(peak_flops=989.4e12, num_parameters=70e9, tokens=15e12, num_devices=1024, hours=1440)
    with pytest.raises(ConfigurationError, match=r"nearest that can be: ") as refused:
        solve(run)
    words = str(refused.value).rpartition(": ")[2].rstrip(".").split(", or ")
    assert [word.partition("=")[0] for word in words] == ["fleet.tokens", "fleet.num_devices", "fleet.hours"]
    for word in words:
        key, _, value = word.partition("=")
        assert (solve(replace(run, **{key.removeprefix("fleet."): parse_quantity(value, key)})).mfu or 2) <= 1
