from dataclasses import replace

import pytest

from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.communication import communication, link_rate

FSDP = ModelSpread(shards_over="all ranks", casts_parameters=True)
SETTINGS = {
    "num_ranks": 8,
    "accumulation_micro_steps": 4,
    "cluster": Cluster(name="x", device="NVIDIA H200", devices_per_node=8),
}


def test_ddp_reduces_gradients_once_a_step_whatever_the_accumulation():
    sent = communication(ModelSpread(), 10**9, **SETTINGS)
    assert sent.gathered_bytes == 0
    assert sent.reduced_bytes == 2 * 7 / 8 * 4e9
    assert sent.seconds == pytest.approx(7e9 / 450e9)


def test_fsdp_gathers_weights_twice_a_micro_step_and_scatters_gradients_once():
    sent = communication(FSDP, 10**9, **SETTINGS)
    assert sent.gathered_bytes == 7 / 8 * 2e9 * 2 * 4
    assert sent.reduced_bytes == 7 / 8 * 4e9
    kept = communication(replace(FSDP, reshard_after_forward=False), 10**9, **SETTINGS)
    assert kept.gathered_bytes == sent.gathered_bytes / 2


def test_a_ring_over_nodes_goes_at_the_lesser_of_the_link_and_a_nodes_whole_network():
    one = Cluster(name="x", device="NVIDIA H200", devices_per_node=8)
    assert link_rate(one) == 450e9
    many = Cluster(name="x", device="NVIDIA H200", devices_per_node=8, num_nodes=4, network_bytes_per_second=400e9)
    assert link_rate(many) == 400e9
    fast = Cluster(name="x", device="NVIDIA H200", devices_per_node=8, num_nodes=4, network_bytes_per_second=800e9)
    assert link_rate(fast) == 450e9
    assert link_rate(Cluster(name="x", device="NVIDIA H200", num_nodes=4)) is None
    assert link_rate(Cluster(name="local")) is None


def test_the_formula_is_what_a_ring_sends():
    """Count a ring all-reduce chunk by chunk: each of W ranks sends a 1/W chunk 2 (W - 1) times."""
    num_ranks, num_values = 5, 1000
    sent = sum(num_values // num_ranks for _ in range(2 * (num_ranks - 1))) * 4
    formula = communication(
        ModelSpread(), num_values, num_ranks=num_ranks, accumulation_micro_steps=1, cluster=Cluster(name="x")
    )
    assert formula.total_bytes == sent


def test_shards_within_a_node_are_gathered_there_and_averaged_across():
    cluster = Cluster(name="x", device="NVIDIA H200", devices_per_node=8, num_nodes=2, network_bytes_per_second=400e9)
    hybrid = ModelSpread(shards_over=8, casts_parameters=True)
    sent = communication(hybrid, 10**9, cluster=cluster, num_ranks=16, accumulation_micro_steps=4)
    assert sent.gathered_bytes == 7 / 8 * 2e9 * 2 * 4
    assert sent.reduced_bytes == 7 / 8 * 4e9 + 2 * 1 / 2 * 4e9 / 8
    assert sent.seconds == pytest.approx((14e9 + 3.5e9) / 450e9 + 0.5e9 / 50e9)
    assert [(each.group, each.num_ranks) for each in sent.groups] == [("shards", 8), ("copies", 2)]


def test_groups_that_reach_beyond_a_node_share_its_network():
    """Shards of two neighbours leave eight copies: four rings a node would share its network were each copy whole."""
    cluster = Cluster(name="x", device="NVIDIA H200", devices_per_node=8, num_nodes=2, network_bytes_per_second=400e9)
    pairs = communication(ModelSpread(shards_over=2), 10**9, cluster=cluster, num_ranks=16, accumulation_micro_steps=1)
    inside, across = pairs.groups
    assert (across.stride, across.num_ranks) == (2, 8)
    assert pairs.seconds == pytest.approx(inside.num_bytes / 450e9 + across.num_bytes / (400e9 / 2))
