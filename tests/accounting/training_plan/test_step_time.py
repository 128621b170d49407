"""The modelled step against measured ones, and what no step can be."""

from dataclasses import replace
from typing import Any

import pytest

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.options.strategy import Collective, ModelSpread, Stream
from lmtrain.accounting.training_plan.speed import MODELLED, expected_speed
from lmtrain.accounting.training_plan.step_time import StepTime, group_rate
from lmtrain.run.planning.plan import plan_of
from tests.configs import config_of

LLAMA = ("experiment=llama_3_2_1b_adamw", "batch.micro_batch_sequences=16")
GPT2 = ("experiment=gpt2_124m_adamw", "model.vocab_size=50304", "compile=blocks", "batch.micro_batch_sequences=64")
NODE = Cluster(name="x", device="NVIDIA H200", devices_per_node=8)
NODES = replace(NODE, num_nodes=2, device_network_bytes_per_second=50e9)


@pytest.mark.parametrize(
    ("words", "tokens", "measured"),
    [(LLAMA, 524_288, 7.958), (LLAMA, 65_536, 1.006), (GPT2, 524_288, 0.929), (GPT2, 65_536, 0.1196)],
)
def test_a_step_of_an_h200_is_within_a_twentieth_of_the_measured(
    words: tuple[str, ...], tokens: int, measured: float
) -> None:
    plan, _ = plan_of(config_of(*words, "cluster=h200_1x", f"batch.tokens_per_step={tokens}"))
    assert plan.speed is not None
    assert plan.speed.step_seconds == pytest.approx(measured, rel=0.05)
    assert plan.speed.source == MODELLED


ON_A_NODE = (
    *("cluster=h100_8x", "optimizer=adamw", "precision=bf16_mixed", "compile=blocks", "strategy=fsdp"),
    *("batch.context_tokens=8192", "batch.tokens_per_step=65536"),
)


def seconds(*words: str) -> float:
    """Return the planned step of 8B on a node of eight H100."""
    plan, _ = plan_of(config_of("model=llama_3_8b", *ON_A_NODE, *words))
    assert plan.speed is not None
    return plan.speed.step_seconds


def test_recomputation_slow_links_and_no_compiler_take_longer_and_fp8_less() -> None:
    plain = seconds()
    assert 1.2 < seconds("recompute=every_block") / plain < 4 / 3
    assert 1.05 < seconds("compile=none") / plain < 1.6
    assert 0.6 < seconds("precision=fp8") / plain < 0.95
    slow = ("cluster.num_nodes=8", "cluster.network_bytes_per_second=10GB", "batch.tokens_per_step=524288")
    assert seconds(*slow) > 3 * plain
    assert plain < seconds("strategy=fsdp_tensor")


def test_a_fuller_expert_takes_longer_and_sends_more() -> None:
    words = ("model=mixtral_8x7b", "strategy.expert_size=8", "recompute=every_block")
    even, uneven = (plan_of(config_of(*words, *ON_A_NODE, f"experts.imbalance={one}"))[0] for one in (1, 1.3))
    assert even.step is not None
    assert uneven.step is not None
    assert 1.15 < uneven.step.seconds / even.step.seconds < 1.3
    assert even.communication is not None
    assert uneven.communication is not None
    sent = [{each.group: each.num_bytes for each in one.groups} for one in (even.communication, uneven.communication)]
    assert sent[1]["expert groups"] == pytest.approx(1.3 * sent[0]["expert groups"])
    assert sent[1]["shards"] == sent[0]["shards"]


def groups(spread: ModelSpread, **more: Any) -> list[Collective]:
    """Return what 8 ranks send for a billion parameters in bf16 and four micro-steps."""
    asked = {"num_ranks": 8, "gathered": 2e9, "num_gradients": 1e9, "micro_steps": 4} | more
    return list(spread.collectives(**asked))


def test_rings_send_what_they_send() -> None:
    """All-reduce 2 (W - 1) / W of the bytes, gathers and scatters half of it (Patarasuk and Yuan, 2009)."""
    (ddp,) = groups(ModelSpread())
    assert (ddp.gathered_bytes, ddp.reduced_bytes) == (0, 2 * 7 / 8 * 4e9)
    sharded = ModelSpread(shards_over="all ranks")
    (fsdp,) = groups(sharded)
    assert (fsdp.gathered_bytes, fsdp.reduced_bytes) == (7 / 8 * 2e9 * 2 * 4, 7 / 8 * 4e9)
    (kept,) = groups(replace(sharded, reshard_after_forward=False))
    assert kept.gathered_bytes == fsdp.gathered_bytes / 2
    inside, across = groups(ModelSpread(shards_over=8), num_ranks=16)
    assert (across.num_ranks, across.stride, across.reduced_bytes) == (2, 8, 2 * 1 / 2 * 4e9 / 8)
    assert inside.gathered_bytes == fsdp.gathered_bytes


def test_ring_and_ulysses_are_different_costs() -> None:
    stream = Stream(num_tokens=8192, num_bytes=8192 * 4096 * 2, num_layers=32, attention_bytes=2.5e9, kv_bytes=0.5e9)
    spread = ModelSpread(shards_over="all ranks", context_ranks=4)
    ulysses, ring = (groups(replace(spread, go_round=each), stream=stream)[0].num_bytes for each in (False, True))
    assert ulysses == 4 * 2 * 2.5e9 * 3 / 16
    assert ring == 4 * 3 * 0.5e9 * 3 / 4


def test_groups_beyond_a_node_share_its_network_and_half_a_node_has_half_of_it() -> None:
    whole, copies = Collective(group="shards", num_ranks=16), Collective(group="copies", num_ranks=2, stride=8)
    inside = Collective(group="shards", num_ranks=8)
    assert [group_rate(NODES, each) for each in (inside, whole, copies)] == [450e9, 400e9, 50e9]
    near, far = (Collective(group="expert groups", num_ranks=ranks, is_exchange=True) for ranks in (8, 16))
    assert group_rate(NODES, near) == 450e9
    assert group_rate(NODES, far) == pytest.approx(50e9 * 15 / 8), "eight of the other fifteen are on another node"
    half = replace(NODES, devices_per_node=4, num_nodes=4)
    assert group_rate(half, whole) == 200e9
    assert group_rate(replace(half, network_bytes_per_second=300e9), whole) == 300e9, "typed"
    assert group_rate(replace(NODES, device_network_bytes_per_second=None), whole) is None


def test_a_stated_utilization_comes_first_then_the_model_then_what_is_usual() -> None:
    batch = BatchPlan(context_tokens=100, sequences_per_micro_step=5, accumulation_micro_steps=1, num_ranks=2)
    peak = Peak(1e9, "a test")
    modelled = StepTime(seconds=0.8, compute_seconds=0.7, message_seconds=0.2)
    more: dict[str, Any] = {"flops_per_token": 1e6, "modelled": modelled}
    stated = expected_speed(Cluster(name="a", mfu=0.5), peak, batch, **more)
    planned = expected_speed(Cluster(name="a"), peak, batch, **more)
    usual = expected_speed(Cluster(name="a"), peak, batch, flops_per_token=1e6, recomputed_flops=3e5)
    assert stated is not None
    assert planned is not None
    assert usual is not None
    assert [each.step_seconds for each in (stated, planned)] == [1.0, 0.8]
    assert usual.step_seconds == pytest.approx(1.25 * 1.3)
    assert (usual.mfu_palm, usual.hfu_palm) == pytest.approx((0.4 / 1.3, 0.4))
    assert "assumed" in usual.source
