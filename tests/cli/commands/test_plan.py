"""The plan as a person asks for it, against published runs. Facts of a model come from the real one, once."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmtrain.cli.commands.plan import plan
from lmtrain.errors import ConfigurationError
from lmtrain.run.planning.plan import planned_runs

SMALL = ["model=llama_tiny", "compile=none", "cluster=h100_8x", "batch.tokens_per_step=1M", "batch.context_tokens=1000"]
CACHE = Path(__file__).parents[2] / ".cache" / "tests"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert plan([*words, "--json", "compile=none", f"run.cache={CACHE}"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_plan_has_every_key_that_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *SMALL, "budget.tokens=100M", "cluster.usd_per_gpu_hour=2")
    assert {"total", "embedding", "matmul", "active"} <= set(found["parameters"])
    assert found["batch"]["tokens_per_step"] == 1_000_000
    assert {"steps", "tokens", "epochs", "flops"} <= set(found["horizon"])
    kinds = {"weights", "gradients", "optimizer", "activations", "workspace", "total"}
    assert kinds <= set(found["memory"]["per_device_bytes"])
    assert found["memory"]["fits"] is True
    assert {"step_seconds", "hours", "days"} <= set(found["time"])
    assert found["cost"]["usd"] == pytest.approx(found["time"]["hours"] * 8 * 2)
    assert sum(found["parameters"]["components"].values()) == found["parameters"]["total"]


def test_a_kernel_without_a_backward_pass_here_is_planned_for_an_unknown_device(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = asked(capsys, "attention=flex", "model=llama_micro", "tokenizer.vocab_size=512")
    assert found["memory"]["per_device_bytes"]["activations"] > 0


def test_llama_3_2_1b_on_20_billion_tokens_takes_thirteen_hours_on_eight_h100(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "model=llama_3_2_1b",
        "cluster=h100_8x",
        "batch.context_tokens=4096",
        "batch.tokens_per_step=1048576",
        "cluster.mfu=0.4",
    ]
    found = asked(capsys, *words, "budget.tokens=20B", "batch.micro_batch_sequences=2")
    assert found["parameters"]["total"] == 1_235_814_400
    six_n_hours = found["time"]["hours"] * found["flops_per_token"]["six_n"] / found["flops_per_token"]["palm"]
    assert six_n_hours == pytest.approx(13.0, rel=5e-3), "the published figure reckons with 6N"


@pytest.mark.parametrize(
    ("model", "devices", "tokens", "mfu", "days"),
    [("llama_3_70b", 1024, "15T", 0.5, 143.9), ("llama_3_405b", 16_000, "15.6T", 0.4, 69.3)],
)
def test_large_runs_take_the_known_days(
    capsys: pytest.CaptureFixture[str], model: str, devices: int, tokens: str, mfu: float, days: float
) -> None:
    words = [f"model={model}", "cluster=h100_8x", f"cluster.num_nodes={devices // 8}", f"cluster.mfu={mfu}"]
    batch = ["batch.context_tokens=8192", f"batch.tokens_per_step={8192 * devices}", "batch.micro_batch_sequences=1"]
    found = asked(
        capsys, *words, *batch, "strategy=fsdp", "recompute=every_block", "loss=chunked", f"budget.tokens={tokens}"
    )
    in_billions = {"llama_3_70b": 70e9, "llama_3_405b": 405e9}[model]
    at_six_n = found["time"]["days"] * 6 * in_billions / found["flops_per_token"]["palm"]
    assert at_six_n == pytest.approx(days, rel=2e-3), "the published figures reckon with 6 x 70e9 and 6 x 405e9"
    assert found["memory"]["fits"] is True


def test_what_does_not_fit_answers_1_and_names_the_nearest_change(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=llama_3_8b", "cluster=h100_8x", "batch.context_tokens=8192", "batch.tokens_per_step=524288"]
    words += ["recompute=every_block", "strategy=ddp"]
    found = asked(capsys, *words, "budget.tokens=1B", code=1)
    assert found["memory"]["fits"] is False
    advised, *_ = (line.removeprefix("fits with ").split() for line in found["advice"] if "strategy=fsdp" in line)
    fitting = asked(capsys, *words, "budget.tokens=1B", *advised, code=0)
    assert fitting["memory"]["fits"] is True, "the advice is right"


def test_a_micro_batch_called_auto_is_the_largest_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=llama_3_2_1b", "cluster=h100_8x", "batch.context_tokens=4096", "batch.tokens_per_step=4194304"]
    words.append("strategy=ddp")
    found = asked(capsys, *words, "budget.tokens=1B", "batch.micro_batch_sequences=auto")
    sequences = found["batch"]["micro_batch_sequences"]
    assert found["memory"]["fits"] is True
    assert found["batch"]["tokens_per_step"] == 4_194_304
    more = asked(capsys, *words, "budget.tokens=1B", f"batch.micro_batch_sequences={2 * sequences}", code=1)
    assert more["memory"]["fits"] is False


def test_a_run_that_cannot_finish_in_its_hours_answers_1(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *SMALL, "budget.tokens=1T", "budget.hours=1", code=1)
    assert found["horizon"]["limited_by"] == "hours"
    assert any(line.startswith("does not finish: budget.hours ends it after") for line in found["advice"])


def test_a_strategy_that_a_task_cannot_train_on_is_refused_as_in_training(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "task=grpo", "strategy=fsdp", "budget.steps=9"]
    message = r"^strategy: must be one with whole weights .* task=grpo, got fsdp. Did you mean "
    with pytest.raises(ConfigurationError, match=message):
        planned_runs([*words, "init_from=x"])
    with pytest.raises(ConfigurationError, match=r"^packing: must be one with an answer per row with task=grpo"):
        plan([*words, "strategy=ddp", "packing=contiguous"])
    time = asked(capsys, *words, "strategy=ddp", "batch.tokens_per_step=1024000")["time"]  # without a starting model
    assert set(time["accounts"]) == {"compute", "generation"}
    assert sum(time["accounts"].values()) == pytest.approx(3600 * time["hours"])
    dpo = [
        *SMALL,
        "task=dpo",
        "source.paths=[x.jsonl]",
        "batch.tokens_per_step=1024000",
        "budget=steps",
        "budget.steps=9",
    ]
    time = asked(capsys, *dpo, "strategy=ddp")["time"]
    assert time["accounts"] == {"compute": 9 * time["step_seconds"], "setup": pytest.approx(3 * time["step_seconds"])}
