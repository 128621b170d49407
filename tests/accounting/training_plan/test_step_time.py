"""The lanes of computing and of groups, by hand; rates as they are stated."""

from dataclasses import replace

import pytest

from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.training_plan.simulated_step import Efficiency, Kernel, Message, Rates, Wait, step_time

IDEAL = Efficiency(
    products=1.0,
    attention=1.0,
    memory=1.0,
    links=1.0,
    launch_seconds=0.0,
    node_hop_seconds=0.0,
    network_hop_seconds=0.0,
)
NODES = Cluster(
    name="h100_8x", device="NVIDIA H100 80GB HBM3", devices_per_node=8, num_nodes=2, network_bytes_per_second=400e9
)
RATES = Rates(cluster=NODES, efficiency=IDEAL)


def computing(seconds):
    return Kernel(flops=seconds * 989.4e12, num_bytes=1, dtype="bf16")


def gather(seconds, **settings):
    num_bytes = round(seconds * 450e9 / 7)
    return Message(kind="gather", num_ranks=8, num_bytes=num_bytes, awaited="when used", **settings)


def reduction(seconds):
    return Message(kind="scatter", num_ranks=8, num_bytes=round(seconds * 450e9 * 8 / 7), awaited="at the end")


def test_a_kernel_takes_the_longer_of_computing_and_moving_at_the_stated_shares():
    assert RATES.kernel_seconds(Kernel(flops=989.4e12, num_bytes=1e9, dtype="bf16")) == pytest.approx(1)
    assert RATES.kernel_seconds(Kernel(flops=1e12, num_bytes=3.35e12, dtype="bf16")) == pytest.approx(1)
    half = replace(IDEAL, products=0.5, launch_seconds=0.25)
    assert Rates(cluster=NODES, efficiency=half).kernel_seconds(computing(1)) == pytest.approx(2.25)
    slow = Rates(cluster=NODES, efficiency=replace(IDEAL, attention=0.25))
    assert slow.kernel_seconds(replace(computing(1), is_attention=True)) == pytest.approx(4)
    assert slow.kernel_seconds(computing(1)) == pytest.approx(1)


def test_a_message_takes_its_slowest_link_and_its_hops():
    whole = Message(kind="gather", num_ranks=16, num_bytes=400 * 10**9 // 15)
    assert RATES.message_seconds(whole) == pytest.approx(1)
    hops = replace(IDEAL, node_hop_seconds=1.0, network_hop_seconds=10.0)
    late = Rates(cluster=NODES, efficiency=hops)
    assert late.message_seconds(whole) == pytest.approx(1 + 14 * 1 + 2 * 10, rel=1e-6)
    assert late.message_seconds(gather(1)) == pytest.approx(1 + 7)


def test_weights_are_gathered_behind_the_block_before():
    events = [gather(1), Wait("when used"), computing(3), gather(2), Wait("when used"), computing(3)]
    time = step_time(events, RATES)
    assert (time.seconds, time.compute_seconds) == (pytest.approx(7), pytest.approx(6))
    slow = [gather(1), Wait("when used"), computing(3), gather(5), Wait("when used"), computing(3)]
    assert step_time(slow, RATES).exposed_seconds == pytest.approx(1 + 2)


def test_gradients_are_sent_behind_the_next_block_one_block_at_a_time():
    block = [Wait("at the end"), reduction(2), computing(3)]
    assert step_time([*block, *block], RATES).seconds == pytest.approx(6)
    last = [*block, Wait("at the end"), reduction(4)]
    assert step_time(last, RATES).seconds == pytest.approx(7)
    behind = [reduction(5), computing(1), Wait("at the end"), reduction(5), computing(1), Wait("at the end")]
    assert step_time([*behind, reduction(1)], RATES).seconds == pytest.approx(11)
