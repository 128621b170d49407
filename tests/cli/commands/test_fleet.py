"""The equation as a person types it, against published runs."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lmtrain.cli.commands.fleet import FleetConfig, FleetModel, fleet_of, make_fleet_plan, plan_fleet
from lmtrain.cli.commands.fleet_terms import is_fleet, read_terms
from lmtrain.cli.commands.plan import plan
from lmtrain.errors import ConfigurationError

H100 = "fleet.device=NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert plan([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "term", "value"),
    [
        ("fleet.num_parameters=70B fleet.tokens=15T fleet.num_devices=1024 fleet.mfu=0.5", "days", 143.9),
        ("fleet.num_parameters=405B fleet.tokens=15.6T fleet.num_devices=16000 fleet.mfu=0.4", "days", 69.3),
        ("fleet.num_parameters=1.2735B fleet.tokens=300B fleet.num_devices=8 fleet.mfu=0.5", "days", 6.71),
        ("fleet.num_parameters=1.2358B fleet.tokens=20B fleet.num_devices=8 fleet.mfu=0.4", "hours", 13.0),
        ("fleet.num_devices=32 fleet.days=14 fleet.mfu=0.5", "num_parameters", 12.63e9),
        ("fleet.num_devices=32 fleet.hours=2w fleet.mfu=0.5", "tokens", 252.7e9),
        ("fleet.num_parameters=8B fleet.tokens=160B fleet.num_devices=8 fleet.mfu=0.5", "days", 22.46),
        ("fleet.num_parameters=70B fleet.num_devices=1024 fleet.days=143.94 fleet.mfu=0.5", "tokens", 15e12),
        ("fleet.tokens=15T fleet.num_devices=1024 fleet.days=143.94 fleet.mfu=0.5", "num_parameters", 70e9),
        ("fleet.num_parameters=70B fleet.tokens=15T fleet.num_devices=1024 fleet.days=143.94", "mfu", 0.5),
        ("fleet.num_parameters=70B fleet.tokens=15T fleet.days=143.942 fleet.mfu=0.5", "num_devices", 1024),
    ],
)
def test_the_missing_term_comes_out_as_published(
    words: str, term: str, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(capsys, *words.split(), H100)[term] == pytest.approx(value, rel=2e-3)


def test_money_is_computed_from_a_price_and_stands_for_hours(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet.num_parameters=8B", "fleet.num_devices=8", "fleet.mfu=0.5", "fleet.usd_per_gpu_hour=3", H100]
    there = asked(capsys, *words, "fleet.tokens=160B")
    assert there["usd"] == pytest.approx(12_937, rel=1e-3)
    assert asked(capsys, *words, f"fleet.usd={there['usd']}")["tokens"] == pytest.approx(160e9)


@pytest.mark.parametrize(
    ("words", "term", "value"),
    [
        ("fleet.flops=6.3e24 fleet.num_devices=1024 fleet.mfu=0.5", "days", 143.9),
        ("fleet.flops=6.3e24 fleet.num_devices=1024 fleet.days=143.94", "mfu", 0.5),
        ("fleet.num_devices=16000 fleet.days=69.29 fleet.mfu=0.4", "flops", 3.7908e25),
        ("fleet.flops=3.7908e25 fleet.num_parameters=405B fleet.num_devices=81 fleet.mfu=0.4", "tokens", 15.6e12),
        ("fleet.num_parameters=8B fleet.tokens_per_parameter=20 fleet.num_devices=8 fleet.mfu=0.5", "days", 22.46),
        ("fleet.tokens=160B fleet.tokens_per_parameter=20 fleet.num_devices=8 fleet.mfu=0.5", "num_parameters", 8e9),
        ("fleet.device_hours=4.312K fleet.num_parameters=8B fleet.mfu=0.5", "tokens", 160e9),
        ("fleet.usd=12937 fleet.usd_per_gpu_hour=3 fleet.num_parameters=8B fleet.mfu=0.5", "tokens", 160e9),
        ("fleet.num_parameters=8B fleet.tokens=160B fleet.usd_per_gpu_hour=3 fleet.mfu=0.5", "usd", 12_937),
        ("fleet.usd=12937 fleet.usd_per_gpu_hour=3 fleet.num_parameters=8B fleet.tokens=160B", "mfu", 0.5),
        ("fleet.dtype=fp8 fleet.num_parameters=8B fleet.tokens=160B fleet.num_devices=8 fleet.mfu=0.5", "days", 22.46),
    ],
)
def test_flops_ratios_and_dollars_take_the_place_of_other_terms(
    words: str, term: str, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(capsys, *words.split(), H100)[term] == pytest.approx(value, rel=2e-3)


def test_a_range_of_utilization_is_answered_from_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet.num_parameters=70B", "fleet.tokens=15T", "fleet.num_devices=1024", "fleet.mfu=0.4-0.6", H100]
    found = asked(capsys, *words)
    assert found["mfu"] == 0.5
    assert [run["mfu"] for run in found["over_mfu"]] == [0.4, 0.45, 0.5, 0.55, 0.6]
    assert [run["hours"] * run["mfu"] for run in found["over_mfu"]] == pytest.approx([143.94 * 12] * 5, rel=1e-4)
    assert asked(capsys, *words, "fleet.days=150", code=1)["advice"][0].startswith("at 0.4 MFU it does not finish")
    assert asked(capsys, *words[:3], "fleet.mfu=0.4..0.6", H100) == found


@pytest.mark.parametrize(("precision", "dtype", "num_bytes"), [("bf16_true", "bf16", 8), ("fp8", "fp8", 16)])
def test_a_precision_brings_the_peak_and_the_bytes(
    precision: str, dtype: str, num_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fleet.num_parameters=8B", "fleet.tokens=160B", "fleet.num_devices=8", "fleet.mfu=0.5", H100]
    found = asked(capsys, *words, f"precision={precision}")
    assert (found["precision"], found["bytes_per_parameter"]) == (precision, num_bytes)
    assert found["peak_flops"] == asked(capsys, *words, f"fleet.dtype={dtype}")["peak_flops"] == 989.4e12, "bf16's"
    assert ("which MFU divides by in fp8 too: a faster step is a higher fleet.mfu" in found["peak_source"]) == (
        dtype == "fp8"
    )


def test_the_shorter_of_time_and_money_counts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet.num_parameters=8B", "fleet.num_devices=8", "fleet.mfu=0.5", "fleet.usd_per_gpu_hour=3", H100]
    assert asked(capsys, *words, "fleet.hours=10", "fleet.usd=1000")["hours"] == pytest.approx(10)
    assert asked(capsys, *words, "fleet.hours=10", "fleet.usd=120")["hours"] == pytest.approx(5)


def test_devices_are_whole_and_the_time_follows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet.num_parameters=70B", "fleet.tokens=15T", "fleet.days=30", "fleet.mfu=0.5", H100]
    found = asked(capsys, *words)
    assert found["num_devices"] == 4914
    assert found["found"] == ["num_devices"]
    assert found["days"] < 30


def test_a_known_model_counts_as_it_is_and_by_its_own_flops(capsys: pytest.CaptureFixture[str]) -> None:
    model = ["model=llama_tiny", "batch.context_tokens=128"]
    found = asked(capsys, *model, "cluster=h100_8x", "fleet.num_devices=1", "fleet.tokens=1B")
    assert found["num_parameters"] == int(found["num_parameters"])
    assert found["flops"] == pytest.approx(found["flops_per_token"] * 1e9)
    assert found["mfu"] == 0.4
    assert found["mfu_is_assumed"]
    assert found["context_tokens"] == 128
    found = asked(capsys, "model=gpt2_124m", "cluster=h100_8x", "fleet.num_devices=1", "fleet.tokens=1B")
    assert found["context_tokens"] == 1024  # its own, where none is typed
    assert found["flops_per_token"] == 6 * 123_532_032 + 12 * 12 * 768 * 1024
    words = ["model=mixtral_tiny", "cluster=h100_8x", "fleet.num_devices=1"]
    found = asked(capsys, *words, "fleet.tokens_per_parameter=20")
    assert found["tokens"] == pytest.approx(20 * found["num_active_parameters"])
    assert found["num_active_parameters"] < found["num_parameters"]
    assert plan_fleet([*words, "fleet.tokens_per_parameter=20"]) == 0
    assert ", 20 an active parameter (20 is compute-optimal)" in capsys.readouterr().out


def test_a_cluster_brings_its_devices_and_price(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cluster=h100_8x", "cluster.usd_per_gpu_hour=3", "fleet.num_parameters=8B", "fleet.tokens=160B"]
    found = asked(capsys, *words, "fleet.mfu=0.5")
    assert found["num_devices"] == 8
    assert found["usd"] == pytest.approx(12_937, rel=1e-3)
    assert asked(capsys, *words, "fleet.num_devices=null", "fleet.mfu=0.5", "fleet.days=22.5")["num_devices"] == 8


def test_a_run_that_does_not_fit_or_finish_exits_one_with_the_nearest_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["fleet.num_parameters=405B", "fleet.tokens=1B", "fleet.num_devices=64", "fleet.mfu=0.4", H100]
    (line,) = asked(capsys, *words, code=1)["advice"]
    assert "fleet.num_devices=81" in line
    words = ["fleet.num_parameters=70B", "fleet.tokens=15T", "fleet.num_devices=1024", "fleet.mfu=0.5", H100]
    (line,) = asked(capsys, *words, "fleet.days=71.971", code=1)["advice"]
    assert "fleet.num_devices=2048" in line
    assert "fleet.tokens=7.5T" in line
    asked(capsys, *words, "fleet.days=150")
    (line,) = asked(capsys, *words, "fleet.usd=1M", "fleet.usd_per_gpu_hour=3", code=1)["advice"]
    assert "$10,6" in line


def test_the_table_marks_what_was_computed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet.num_parameters=70B", "fleet.tokens=15T", "fleet.num_devices=1024", "fleet.mfu=0.5", H100]
    assert plan_fleet(words) == 0
    assert "144 days (3,455 hours)  <- computed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("fleet.gpus=8", "Did you mean 'num_devices'"),
        ("fleet.num_parmeters=8B", "Did you mean 'num_parameters'"),
        ("fleet.tokens=2h", "fleet.tokens=2h is not a number; write it as 20M"),
        ("fleet.days=3B", "fleet.days=3B is not a time"),
        ("fleet.mfu=40%", "fleet.mfu=0.4"),
        ("fleet.mfu=1.5", "at most 1; 0.4 is 40%"),
        ("fleet.tokens=0", "fleet.tokens=0 is not above 0"),
        ("fleet.tokens=-3B", "fleet.tokens=-3B is not a number"),
        ("fleet.num_devices=3.4", "not a whole number; nearest valid: 3"),
        ("fleet.num_parameters=3B", "given twice"),
        ("fleet.usd=500", "fleet.usd=500 needs a price"),
        ("fleet.dtype=bf17", "Did you mean 'bf16'"),
        ("fleet.compute=1e24", "Did you mean 'flops'"),
        ("fleet.mfu=30%-50%", r"write it as fleet\.mfu=0\.3-0\.5"),
        ("fleet.mfu=0.3,0.5", r"write it as fleet\.mfu=0\.3-0\.5"),
        ("fleet.mfu=0.5-0.3", r"write it as fleet\.mfu=0\.3-0\.5"),
        ("fleet.mfu=0.5-1.3", "is not a range above 0 and at most 1"),
        ("optimizer=adamw", "optimizer=adamw has no effect"),
        ("batch.context_tokens=4096", "no effect without a model"),
        ("cluster=h100_8x", "are two devices"),
        ("fleet.device_hours=2h", "fleet.device_hours=2h is not a number"),
    ],
)
def test_bad_words_are_refused_with_the_nearest_right_form(word: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan(["fleet.num_parameters=8B", H100, word])


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("NVIDIA", "Did you mean 'NVIDIA H100 80GB HBM3'"),
        ("80GB", "Did you mean 'NVIDIA H100 80GB HBM3' or 'NVIDIA GH200 480GB'"),
        ("NVIDIA H10O PCIe", "Did you mean 'NVIDIA H100 PCIe'"),
        ("NVIDIA H200,NVIDIA L4", "mixes devices.*nearest valid: NVIDIA H200"),
        (None, "fleet.device has no value"),
    ],
)
def test_a_device_is_one_of_the_table(device: str | None, message: str) -> None:
    terms = read_terms(["fleet.num_parameters=8B", *([f"fleet.device={device}"] if device else [])])
    with pytest.raises(ConfigurationError, match=message):
        make_fleet_plan(terms, FleetConfig())


def test_a_word_of_a_name_is_the_table_s_first_with_it_and_the_others_are_told() -> None:
    words = ["fleet.num_parameters=8B", "fleet.tokens=1T", "fleet.num_devices=8"]
    named, called = (
        make_fleet_plan(read_terms([*words, device]), FleetConfig()) for device in (H100, "fleet.device=h100")
    )
    assert called.run == named.run
    assert called.peak_source == (f"{named.peak_source}; fleet.device=h100 is also NVIDIA H100 PCIe, NVIDIA H100 NVL")


def test_too_few_terms_and_more_than_the_peak_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="tokens and hours are both unknown"):
        plan(["fleet.num_parameters=8B", "fleet.num_devices=8", "fleet.mfu=0.5", H100])
    with pytest.raises(ConfigurationError, match=r"fleet\.mfu=1\.012 would be needed"):
        plan(["fleet.num_parameters=405B", "fleet.tokens=15.6T", "fleet.num_devices=16000", "fleet.days=27.4", H100])


def test_an_unknown_device_takes_its_peak_and_a_model_counts_once() -> None:
    terms = read_terms(["fleet.device=Mine", "fleet.peak_flops=100T", "fleet.num_devices=1", "fleet.tokens=1B"])
    model = FleetModel("small", 1_000_000, 1_000_000, 7_000_000, 512)
    planned = make_fleet_plan(terms, FleetConfig(model=model))
    assert planned.run.hours == pytest.approx(7e15 / (1e14 * 0.4) / 3600)
    with pytest.raises(ConfigurationError, match="two models"):
        make_fleet_plan({**terms, "num_parameters": 1e6}, FleetConfig(model=model))


WORKS = (
    ("fleet.num_parameters=70B", "fleet.tokens=1T"),
    ("fleet.num_parameters=8B", "fleet.tokens_per_parameter=20"),
    ("fleet.flops=3.8e24",),
    ("fleet.flops=1e22", "fleet.num_parameters=405B"),
)
LIMITS = ("fleet.days=3", "fleet.days=90", "fleet.usd=100K", "fleet.device_hours=10K")


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("mfu", ["0.4", "0.3-0.5"])
def test_advice_that_is_typed_mends_what_it_was_given_for(work: tuple[str, ...], mfu: str) -> None:
    tried = 0
    for devices, limit in itertools.product(("1", "32", "1000", "null"), LIMITS):
        words = [*work, limit, f"fleet.num_devices={devices}", f"fleet.mfu={mfu}", "fleet.usd_per_gpu_hour=2", H100]
        for line in problems(words):
            for key, value in re.findall(r"(fleet\.\w+)=([\w.-]+)", line):
                kept = [word for word in words if not word.startswith(f"{key}=")]
                assert without_numbers(line) not in map(without_numbers, problems([*kept, f"{key}={value}"])), line
                tried += 1
    assert tried > 10


ADVICE_ABOVE_THE_PEAK = (
    ("fleet.tokens=16T", "fleet.num_devices=8", "fleet.days=10", "fleet.usd=5K"),
    ("fleet.tokens=16T", "fleet.num_devices=8", "fleet.days=400", "fleet.usd=5K"),
    ("fleet.tokens=16T", "fleet.num_devices=8", "fleet.hours=3", "fleet.usd=50M"),
    ("fleet.tokens=16T", "fleet.hours=100", "fleet.device_hours=10K", "fleet.usd=5K"),
    ("fleet.tokens_per_parameter=20", "fleet.num_devices=1", "fleet.days=1.5"),
    ("fleet.tokens=16T", "fleet.num_devices=64", "fleet.device_hours=1K", "fleet.days=0.1"),
)


@pytest.mark.parametrize("terms", ADVICE_ABOVE_THE_PEAK)
def test_advice_above_the_peak_keeps_every_limit_when_typed(terms: tuple[str, ...]) -> None:
    words = ["fleet.num_parameters=7B", "fleet.usd_per_gpu_hour=3", H100, *terms]
    with pytest.raises(ConfigurationError, match=r"would be needed") as refused:
        fleet_of(words)
    at_peak, tuned = re.findall(r"(fleet\.[a-z][^;]*?)(?:;|\.$)", str(refused.value).partition("MFU: ")[2])
    for said, most in ((at_peak, 1.0), (tuned, 0.4)):
        for advice in said.split("MFU, a well-tuned run's: ")[-1].split(", or "):
            changed = advice.split(" with ")
            keys = tuple(f"{word.partition('=')[0]}=" for word in changed)
            plan = fleet_of([*(word for word in words if not word.startswith(keys)), *changed])
            assert 0.7 * most < (plan.run.mfu or 0) <= most * (1 + 1e-9), advice
            assert not any("does not finish" in line for line in plan.problems)


def problems(words: list[str]) -> tuple[str, ...]:
    return make_fleet_plan(read_terms(words), FleetConfig()).problems


def without_numbers(line: str) -> str:
    return re.sub(r"[\d.,]+", "", line.partition(";")[0])


def test_only_fleet_words_ask_for_the_equation() -> None:
    assert is_fleet(["cluster=h100_8x", "fleet.tokens=1B"])
    assert not is_fleet(["cluster=h100_8x", "budget.tokens=1B"])
