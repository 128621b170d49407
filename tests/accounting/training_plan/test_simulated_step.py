"""Figures of a simulated step, and the line from a few blocks to many."""

from dataclasses import replace

import pytest

from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.training_plan.simulated_step import (
    Kernel,
    Message,
    Rates,
    along_line,
    figures_of,
)

RATES = Rates(cluster=Cluster(name="h100_8x", device="NVIDIA H100 80GB HBM3", devices_per_node=8))


def figures(num_blocks):
    events = [
        Kernel(flops=1e12, num_bytes=1, dtype="bf16"),
        Message(kind="gather", num_ranks=8, num_bytes=100),
    ] * num_blocks
    peaks = {"forward": {"weights": 10 * num_blocks, "activations": 5}, "backward": {"weights": 1, "activations": 2}}
    return figures_of(events, peaks, flops=1e12 * num_blocks, rates=RATES)


def test_many_alike_blocks_lie_on_the_line_of_a_few():
    found, truth = along_line(figures(2), figures(3), blocks=(2, 3), num_blocks=80), figures(80)
    assert found.time.seconds == pytest.approx(truth.time.seconds)
    assert found.peaks["forward"] == pytest.approx(truth.peaks["forward"])
    assert (found.flops, found.messages[0].num_messages) == pytest.approx((truth.flops, 80))
    assert found.peak_bytes == 805
    less = replace(figures(3), peaks={"forward": {"weights": 30, "activations": 3}, "backward": {"weights": 1}})
    fuller = replace(figures(2), peaks={"forward": {"activations": 5}})
    of_buckets = along_line(fuller, less, blocks=(2, 3), num_blocks=80)
    assert of_buckets.peaks["forward"]["activations"] == 3
