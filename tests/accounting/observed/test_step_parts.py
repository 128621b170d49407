from dataclasses import replace

import pytest

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.model.flops import FlopsPerToken
from lmtrain.accounting.observed.step_parts import Bench, Peaks, StepParts

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
    is_compiled=True,
)


def with_parts(**parts: float) -> Bench:
    return replace(BENCH, parts=replace(PARTS, **parts))


def with_peaks(flops: float | None, matmul: float | None) -> Bench:
    return replace(BENCH, peaks=Peaks(flops=flops, source="a table", matmul=matmul))


def test_what_no_part_has_is_the_host_s():
    assert PARTS.host == pytest.approx(0.009)
    assert sum(PARTS.shares().values()) == pytest.approx(1.0)
    assert replace(PARTS, whole=0.050).host == 0.0, "parts that overlap in the whole leave nothing over"


def test_speed_and_both_conventions():
    assert BENCH.tokens_per_second == pytest.approx(1100 / 0.110)
    assert BENCH.mfu == {"palm": pytest.approx(0.2), "causal": pytest.approx(0.1)}
    assert BENCH.of_matmul == pytest.approx(0.2)
    unknown = with_peaks(None, None)
    assert unknown.mfu == {"palm": None, "causal": None}
    assert unknown.of_matmul is None


@pytest.mark.parametrize(
    ("bench", "expected"),
    [
        (BENCH, "compute"),
        (with_parts(data=0.03, whole=0.14), "data"),
        (with_parts(whole=0.150), "host"),
        (with_parts(optimizer=0.08, whole=0.18), "optimizer"),
        (with_peaks(1e11, 1.2e10), "compute at its limit"),
    ],
)
def test_the_bottleneck_is_named(bench, expected):
    assert bench.bottleneck == expected


def test_rounds_that_differ_widely_are_told_of():
    assert not BENCH.is_uneven
    assert replace(BENCH, step_seconds=(0.1, 0.2, 0.3)).is_uneven


def test_plain_values_for_scripts():
    said = BENCH.to_json()
    assert said["seconds"]["host"] == pytest.approx(0.009)
    assert {"tokens_per_second", "mfu", "bottleneck", "of_matmul_rate", "peak_bytes", "host_syncs"} <= said.keys()
