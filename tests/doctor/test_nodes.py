"""All ranks of a job measured together: the slowest is named with its price, and plans read the fleet's file."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import lmtrain
from lmtrain.accounting.cluster import Cluster
from lmtrain.doctor import nodes
from lmtrain.doctor.nodes import RankRates, fleet_of, measure_ranks, slowest
from lmtrain.launch.detect import outer_launcher
from tests.ranks import on_ranks

NUM_TIMES = 8
H100 = "NVIDIA H100 80GB HBM3"
CLUSTER = Cluster(name="local")


def rates(rank: int, **others: Any) -> RankRates:
    """Return the rates of a rank of two nodes of two devices."""
    known = {"products": 7e14, "memory": 3e12, "disk": 1e9, "in_node": 3e11, "between_nodes": 3e10}
    return RankRates(rank=rank, node=rank // 2, host=f"n{rank // 2}", **{"device": H100, **known, **others})


@pytest.mark.distributed
def test_the_slow_one_of_two_ranks_is_named(tmp_path: Path) -> None:
    on_ranks(_measure, folder=tmp_path)


def _measure(rank: int) -> None:
    nodes.SECONDS["cpu"] = 0.3
    product = torch.mm
    if rank == 1:
        torch.mm = lambda *factors: torch.stack([product(*factors) for _ in range(NUM_TIMES)])
    outer = outer_launcher(os.environ)
    assert outer is not None
    ranks = measure_ranks(outer, Path())
    found = slowest(ranks, Cluster(name="x", usd_per_gpu_hour=3.0))
    assert found is not None
    assert (found.rank, found.cause) == (1, "products")
    assert found.usd_per_hour == 2 * 3.0 * found.share
    assert found.share == 1 - ranks[1].products / ranks[0].products
    assert all(one.in_node and one.memory and one.disk and one.between_nodes is None for one in ranks)


def test_equal_ranks_have_no_slowest_and_a_slow_link_is_named() -> None:
    cluster = Cluster(name="x", usd_per_gpu_hour=2.5)
    assert slowest([rates(rank) for rank in range(4)], cluster) is None
    found = slowest([rates(0), rates(1), rates(2, between_nodes=1.5e10), rates(3)], cluster)
    assert found is not None
    assert (found.rank, found.cause, found.usd_per_hour) == (2, "between nodes", 0.5 * 4 * 2.5)


def test_plans_read_the_fleet_s_file(tmp_path: Path) -> None:
    fleet = fleet_of([rates(0), rates(1), rates(2, between_nodes=2.4e10), rates(3)], CLUSTER, name="measured")
    assert (fleet["num_nodes"], fleet["devices_per_node"], fleet["device"]) == (2, 2, H100)
    assert fleet["network_bytes_per_second"] == 7.2e10  # (24 + 30) GB/s, of which plans count on 0.75
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/measured.yaml").write_text(yaml.safe_dump(fleet))
    planned = lmtrain.plan("--config-dir", str(tmp_path), "cluster=measured", "strategy=fsdp")
    assert planned["batch"]["num_ranks"] == 4
    unknown = fleet_of([rates(0, device="X1"), rates(1, device="X1", products=6e14)], CLUSTER, name="measured")
    assert (unknown["device"], unknown["peak_flops"]) == (None, 6.5e14)
    assert unknown["network_bytes_per_second"] is None
