from dataclasses import replace

import pytest

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.flops import FlopsPerToken
from lmtrain.accounting.step_parts import Bench, StepParts

PARTS = StepParts(whole=0.110, data=0.001, forward=0.030, backward=0.060, optimizer=0.010)
BENCH = Bench(
    parts=PARTS,
    batch=plan_batches(Batch(context_tokens=100, tokens_per_step=1100), num_ranks=1),
    flops_per_token=FlopsPerToken(palm=2_000_000, causal=1_000_000, six_n=900_000),
    peak_flops=1e11,
    peak_source="a table",
    peak_bytes=10**9,
    first_step_seconds=1.5,
    num_steps=40,
    is_compiled=True,
    num_workers=0,
)


def with_parts(**parts: float) -> Bench:
    return replace(BENCH, parts=replace(PARTS, **parts))


def test_what_no_part_has_is_the_host_s():
    assert PARTS.host == pytest.approx(0.009)
    assert sum(PARTS.shares().values()) == pytest.approx(1.0)
    assert replace(PARTS, whole=0.050).host == 0.0, "parts that overlap in the whole leave nothing over"


def test_speed_and_both_conventions():
    assert BENCH.tokens_per_second == pytest.approx(1100 / 0.110)
    assert BENCH.mfu == {"palm": pytest.approx(0.2), "causal": pytest.approx(0.1)}
    assert replace(BENCH, peak_flops=None).mfu == {"palm": None, "causal": None}


@pytest.mark.parametrize(
    ("bench", "expected"),
    [
        (BENCH, "compute"),
        (with_parts(data=0.03, whole=0.14), "data"),
        (with_parts(whole=0.150), "host"),
        (with_parts(optimizer=0.08, whole=0.18), "optimizer"),
        (replace(BENCH, peak_flops=1.2e10), "compute at its limit"),
    ],
)
def test_the_bottleneck_is_named(bench, expected):
    assert bench.bottleneck == expected


def test_advice_has_the_largest_gain_first_and_its_arithmetic():
    slow = with_parts(data=0.1, optimizer=0.09, whole=0.29)
    first, second = slow.advice()[:2]
    assert first == "data.num_workers=2 reads beside training: up to 53% faster"  # 1 / (1 - 0.1 / 0.29)
    assert second.startswith("batch.tokens_per_step=2200 halves the optimizer's share: 18% faster a token")
    assert BENCH.advice() == [
        "more work a micro-batch hides callbacks and the loop (batch.tokens_per_step, "
        "micro_batch_sequences): up to 9% faster a token"
    ]


def test_a_wider_micro_batch_is_advised_where_it_was_measured_to_help():
    now = 0.090 / 1100
    assert any(
        line == "batch.micro_batch_sequences=22: forward and backward 25% faster a token, measured here"
        for line in replace(BENCH, wider_seconds_per_token=0.8 * now).advice()
    )
    assert replace(BENCH, wider_seconds_per_token=0.99 * now).advice() == BENCH.advice()


def test_an_eager_run_is_told_of_the_compiler():
    assert any(line.startswith("compile=auto") for line in replace(BENCH, is_compiled=False).advice())


def test_plain_values_for_scripts():
    said = BENCH.to_json()
    assert said["seconds"]["host"] == pytest.approx(0.009)
    assert {"tokens_per_second", "mfu", "bottleneck", "advice", "peak_bytes", "shares"} <= said.keys()
