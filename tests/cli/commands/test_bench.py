"""The step of a config as `lmtrain bench` measures it, and the changes that it names."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.model.flops import FlopsPerToken
from lmtrain.accounting.observed.bench import Bench, Peaks, StepParts
from lmtrain.cli.commands.bench import bench
from lmtrain.report.bench_page import BOTTLENECKS, page
from lmtrain.report.show import plain_text
from tests import tiny

SMALL = [*tiny.MODEL, *tiny.DATA, *tiny.BATCH, "precision=fp32", "trainer.accelerator=cpu", "cluster.peak_flops=1e15"]
PARTS = StepParts(whole=0.110, data=0.001, forward=0.030, backward=0.060, optimizer=0.010)
BENCH = Bench(
    parts=PARTS,
    batch=plan_batches(Batch(context_tokens=100, tokens_per_step=1100), num_ranks=1),
    flops_per_token=FlopsPerToken(palm=2_000_000, causal=1_000_000, six_n=900_000),
    step_seconds=(0.100, 0.110, 0.120),
    num_steps=40,
    peaks=Peaks(flops=1e11, source="a table", matmul=5e10),
    peak_bytes=10**9,
    setup_seconds=0.5,
    first_step_seconds=1.5,
    syncs_per_step=0.1,
)


def with_parts(**parts: float) -> Bench:
    return replace(BENCH, parts=replace(PARTS, **parts))


def test_a_config_is_measured_and_leaves_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run.log_every_steps=1", "batch.micro_batch_sequences=4", "compile=none", "recompute=every_block"]
    assert bench([*SMALL, *words, "--json", "--seconds=0.2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens_per_second"] > 0
    assert found["mfu"]["palm"] > found["mfu"]["causal"] > 0
    assert found["of_matmul_rate"] > 0
    assert found["host_syncs"] in {0, 1}  # the loss, read once a step or later
    assert set(found["shares"]) == {"data", "forward", "backward", "optimizer", "host"}
    assert found["bottleneck"] in BOTTLENECKS
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (BENCH, "compute"),
        (with_parts(data=0.03, whole=0.14), "data"),
        (with_parts(whole=0.150), "host"),
        (with_parts(optimizer=0.08, whole=0.18), "optimizer"),
        (replace(BENCH, peaks=Peaks(flops=1e11, source="", matmul=1.2e10)), "compute at its limit"),
    ],
)
def test_the_bottleneck_is_named(measured: Bench, expected: str) -> None:
    assert measured.bottleneck == expected
    assert BOTTLENECKS[expected] in " ".join(plain_text(page(measured, title="x")).split())
