"""The equations of a fleet, as a person types them, against published runs."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.fleet import FleetRun, solve, solve_in_whole_devices
from lmtrain.cli.commands.fleet import FleetConfig, make_fleet_plan, plan_fleet, read_terms
from lmtrain.cli.commands.plan import plan
from lmtrain.errors import ConfigurationError

H100 = "fleet.device=NVIDIA H100 80GB HBM3"
PEAK = 989.4e12


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert plan([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "term", "value"),
    [
        ("num_parameters=70B tokens=15T num_devices=1024 mfu=0.5", "days", 143.9),
        ("num_parameters=405B tokens=15.6T num_devices=16000 mfu=0.4", "days", 69.3),
        ("num_parameters=1.2735B tokens=300B num_devices=8 mfu=0.5", "days", 6.71),
        ("num_devices=32 days=14 mfu=0.5", "num_parameters", 12.63e9),
        ("num_devices=32 hours=2w mfu=0.5", "tokens", 252.7e9),
        ("num_parameters=70B num_devices=1024 days=143.94 mfu=0.5", "tokens", 15e12),
        ("tokens=15T num_devices=1024 days=143.94 mfu=0.5", "num_parameters", 70e9),
        ("num_parameters=70B tokens=15T num_devices=1024 days=143.94", "mfu", 0.5),
        ("num_parameters=70B tokens=15T days=143.942 mfu=0.5", "num_devices", 1024),
        ("flops=6.3e24 num_devices=1024 mfu=0.5", "days", 143.9),
        ("num_devices=16000 days=69.29 mfu=0.4", "flops", 3.7908e25),
        ("num_parameters=8B tokens_per_parameter=20 num_devices=8 mfu=0.5", "days", 22.46),
        ("tokens=160B tokens_per_parameter=20 num_devices=8 mfu=0.5", "num_parameters", 8e9),
        ("device_hours=4.312K num_parameters=8B mfu=0.5", "tokens", 160e9),
        ("usd=12937 usd_per_gpu_hour=3 num_parameters=8B mfu=0.5", "tokens", 160e9),
        ("num_parameters=8B tokens=160B usd_per_gpu_hour=3 mfu=0.5", "usd", 12_937),
    ],
)
def test_the_missing_term_comes_out_as_published(
    words: str, term: str, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, *(f"fleet.{word}" for word in words.split()), H100)
    assert found[term] == pytest.approx(value, rel=2e-3)


WORK = (
    ("num_parameters", "tokens"),
    ("num_parameters", "tokens_per_parameter"),
    ("flops", "num_parameters"),
    ("flops", "tokens_per_parameter"),
)
SUPPLY = (("num_devices", "hours"), ("device_hours", "hours"), ("usd", "num_devices"), ("usd", "hours"))
BASES = (
    *((*work, *supply) for work in WORK for supply in SUPPLY),
    *((*work, "mfu", either) for work in WORK for either in ("num_devices", "hours")),
)


@given(
    parameters=st.floats(1e6, 1e13),
    tokens=st.floats(1e6, 1e15),
    devices=st.integers(1, 100_000),
    mfu=st.floats(0.01, 1.0),
    base=st.sampled_from(BASES),
)
def test_all_terms_follow_from_each_set_of_them_that_is_enough(
    parameters: float, tokens: float, devices: int, mfu: float, base: tuple[str, ...]
) -> None:
    priced = FleetRun(peak_flops=PEAK, usd_per_gpu_hour=2.5)
    whole = solve(replace(priced, num_parameters=parameters, tokens=tokens, num_devices=devices, mfu=mfu * 0.999))
    again = solve(replace(priced, **{name: getattr(whole, name) for name in base}))
    known = {name: value for name, value in asdict(whole).items() if value is not None}
    assert {name: getattr(again, name) for name in known} == pytest.approx(known, rel=1e-9)


def test_computed_devices_are_whole() -> None:
    paid = FleetRun(peak_flops=PEAK, usd=1000, usd_per_gpu_hour=3, hours=24, mfu=0.4)  # 13.9 devices
    run = solve_in_whole_devices(paid)
    assert (run.num_devices, run.hours, run.usd) == (13, 24, pytest.approx(936))
    work = FleetRun(peak_flops=PEAK, num_parameters=12.63e9, tokens=252.7e9, hours=100.0, mfu=0.5)
    run = solve_in_whole_devices(work)
    assert run.num_devices == 108
    assert 0 < (run.hours or 0) < 100


def test_a_known_model_counts_by_its_own_flops(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "model=gpt2_124m", "cluster=h100_8x", "fleet.num_devices=1", "fleet.tokens=1B")
    assert found["context_tokens"] == 1024
    assert found["flops_per_token"] == 6 * 123_532_032 + 12 * 12 * 768 * 1024
    words = ["model=mixtral_tiny", "cluster=h100_8x", "fleet.num_devices=1", "fleet.tokens_per_parameter=20"]
    found = asked(capsys, *words)
    assert found["tokens"] == pytest.approx(20 * found["num_active_parameters"])
    model = dict.fromkeys(("num_parameters", "num_active_parameters"), 1_000_000) | {"flops_per_token": 7_000_000}
    terms = read_terms(["fleet.device=Mine", "fleet.peak_flops=100T", "fleet.num_devices=1", "fleet.tokens=1B"])
    assert make_fleet_plan(
        terms, FleetConfig(model="small", context_tokens=512, of_model=model)
    ).run.hours == pytest.approx(7e15 / (1e14 * 0.4) / 3600)


@pytest.mark.parametrize(("precision", "num_bytes"), [("bf16_true", 8), ("fp8", 16)])
def test_a_precision_brings_the_peak_and_the_bytes(
    precision: str, num_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fleet.num_parameters=8B", "fleet.tokens=160B", "fleet.num_devices=8", "fleet.mfu=0.5", H100]
    found = asked(capsys, *words, f"precision={precision}")
    assert (found["precision"], found["bytes_per_parameter"], found["peak_flops"]) == (precision, num_bytes, PEAK)


def test_a_cluster_brings_its_devices_and_price_and_the_page_marks_what_is_computed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["cluster=h100_8x", "cluster.usd_per_gpu_hour=3", "fleet.num_parameters=8B", "fleet.tokens=160B"]
    found = asked(capsys, *words, "fleet.mfu=0.5")
    assert found["num_devices"] == 8
    assert found["usd"] == pytest.approx(12_937, rel=1e-3)
    plan_fleet([*words, "fleet.mfu=0.5"])
    page = capsys.readouterr().out
    assert "22.5 days (539 hours)  <- computed" in page
    assert "$12,937" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fleet.num_parmeters=8B", "Did you mean 'num_parameters'"),
        ("fleet.mfu=40%", "fleet.mfu=0.4"),
        ("fleet.num_devices=3.4", "fleet.num_devices=3.4.* 3"),
        ("fleet.num_parameters=3B", "given twice"),
        ("fleet.usd=500", "needs a price"),
        ("optimizer=adamw", "optimizer=adamw has no effect"),
        ("batch.context_tokens=4096", "no effect without a model"),
        ("cluster=h100_8x", "mutually exclusive"),
        ("fleet.num_devices=8 fleet.mfu=0.5", "tokens and hours are unknown"),
        ("fleet.tokens=15.6T fleet.num_devices=160 fleet.days=2.4", r"fleet\.mfu=.* would be needed"),
        ("fleet.tokens=1T fleet.flops=1e21 fleet.num_devices=1", "contradict"),
    ],
)
def test_bad_words_are_refused(words: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan(["fleet.num_parameters=8B", H100, *words.split()])
