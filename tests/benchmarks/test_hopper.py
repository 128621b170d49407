"""The harness of one GPU: marks that nobody measured say so, and every figure comes out of its row."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks.harness.hopper import user_runs
from benchmarks.harness.hopper.cases import CASES, composed
from benchmarks.harness.hopper.loops import run_words
from benchmarks.harness.hopper.rows import Bench
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import read_config


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("is_toy", [True, False])
def test_a_case_composes_to_one_micro_batch_a_step(case, is_toy, tmp_path):
    bench = Bench(torch.device("cpu"), is_toy=is_toy, known=None)
    words = run_words(case, composed(case, is_toy=is_toy), bench=bench, data=tmp_path, steps=100)
    assert len({word.partition("=")[0] for word in words}) == len(words)
    batch = composed(SimpleNamespace(overrides=lambda is_toy: words), is_toy=is_toy)["batch"]
    assert batch["tokens_per_step"] == batch["micro_batch_sequences"] * batch["context_tokens"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_headline_step_has_524288_tokens_and_a_bf16_residual(case, tmp_path):
    bench = Bench(torch.device("cuda"), is_toy=False, known=None)
    words = run_words(case, composed(case, is_toy=False), bench=bench, data=tmp_path, steps=9, is_whole_step=True)
    config = read_config(compose_config(words))
    assert config.batch.tokens_per_step == 524_288
    assert config.divided(config.batch).accumulation_micro_steps > 1
    assert config.precision.get("residual") == "bf16"
    if case.name != "nano_d24":  # its own batch follows its depth
        assert compose_config(list(case.words))["batch"]["tokens_per_step"] == 524_288, "the experiment itself"
    assert read_config(compose_config([case.words[0]])).precision.get("residual") == "bf16", "of the experiment itself"


def test_a_run_s_folder_tells_stalls_waits_and_the_first_step(tmp_path):
    (tmp_path / "events").mkdir()
    lines = [{"name": "ledger", "step": step, "compute": 10.0 * step, "data_wait": 0.01 * step} for step in range(4)]
    lines += [
        {"name": "checkpoint", "step": step, "seconds": seconds} for step, seconds in ((2, 0.1), (4, 0.3), (6, 9.0))
    ]
    (tmp_path / "events/rank0.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    points = [
        {"time": 100.0 + step, "step": step, "tokens": step, "metrics": {"train/loss": 1.0 / step}} for step in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, points)) + "\n")
    assert user_runs.stall_seconds(tmp_path, last_step=6) == pytest.approx(0.2)
    assert user_runs.data_wait_share(tmp_path) == pytest.approx(0.01 / 10.01)
    assert user_runs.first_step_seconds(tmp_path, 91.0) == pytest.approx(10.0)
    assert user_runs.losses(tmp_path) == {1: 1.0, 2: 0.5}
