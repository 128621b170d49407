"""Measure all ranks of a job together: products, memory, disk and links of each, and the price of the slowest.

Products are sustained on every rank at once, by the clock: a device that is throttled, or shared, shows in them. A
link is measured by a ring in which each rank sends to the next and receives from the one before.
"""

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.machine.hardware import find_device
from lmtrain.accounting.training_plan.step_time import LINKS
from lmtrain.doctor.checks import disk_rates
from lmtrain.launch.detect import OuterLauncher
from lmtrain.parallel.rank_reports import on_all_ranks
from lmtrain.precision.cpu_features import cpu_name

SECONDS: Final = {"cuda": 3.0, "cpu": 1.0}  # of products, after a tenth of them to warm up
SIDES: Final = {"cuda": 8192, "cpu": 768}
LINK_BYTES: Final = {"cuda": 2**28, "cpu": 2**24}
COPY_BYTES: Final = {"cuda": 2**30, "cpu": 2**26}
ROUNDS: Final = 5
SLOW: Final = 0.02  # below the median by more


@dataclass(frozen=True, kw_only=True)
class RankRates:
    """A rank's place, and its rates: FLOP/s of products, bytes per second of all else.

    `in_node` and `between_nodes` are those that it sends at to another rank; None without one.
    """

    rank: int
    node: int
    host: str
    device: str
    products: float
    memory: float
    disk: float
    in_node: float | None
    between_nodes: float | None


@dataclass(frozen=True, kw_only=True)
class SlowestRank:
    """The rank that others wait for: the share of its rate that it lacks to the median's, and the price of an hour."""

    rank: int
    cause: str
    share: float
    usd_per_hour: float | None

    @property
    def words(self) -> str:
        """Name the rank, its cause, and what an hour of it costs."""
        price = self.usd_per_hour
        cost = "set cluster.usd_per_gpu_hour for its price" if price is None else f"up to ${price:,.2f} an hour"
        return f"slowest: rank {self.rank}, {self.share:.0%} below the median ({self.cause}); all wait for it: {cost}"


def measure_ranks(outer: OuterLauncher, folder: Path) -> list[RankRates]:
    """Measure all ranks, and return each one's rates on every rank; the disk is that of `folder`."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    wait: Callable[[], object] = torch.cuda.synchronize if kind == "cuda" else lambda: None
    places = on_all_ranks((outer.node_rank, outer.local_rank))
    together = [rank for rank, (node, _) in enumerate(places) if node == outer.node_rank]
    across = [rank for rank, (_, local) in enumerate(places) if local == outer.local_rank]
    source = torch.zeros(COPY_BYTES[kind], dtype=torch.uint8, device=kind)
    target = torch.empty_like(source)
    return on_all_ranks(
        RankRates(
            rank=outer.rank,
            node=outer.node_rank,
            host=socket.gethostname(),
            device=torch.cuda.get_device_name() if kind == "cuda" else cpu_name(),
            products=_sustained_products(kind, wait),
            memory=2 * source.nbytes / _least_seconds(lambda: target.copy_(source), wait),
            disk=disk_rates(folder)[0],
            in_node=_ring_rate(together, kind, wait),
            between_nodes=_ring_rate(across, kind, wait),
        )
    )


def _sustained_products(kind: str, wait: Callable[[], object]) -> float:
    side = SIDES[kind]
    left, right = torch.randn(2, side, side, device=kind).to(torch.bfloat16 if kind == "cuda" else torch.float32)
    done = 0.0
    for seconds in (SECONDS[kind] / 10, SECONDS[kind]):
        dist.barrier()
        num, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            torch.mm(left, right)
            num += 1
            wait()
        done = 2 * side**3 * num / (time.perf_counter() - began)
    return done


def _least_seconds(work: Callable[[], object], wait: Callable[[], object]) -> float:
    seconds: list[float] = []
    for _ in range(ROUNDS):
        dist.barrier()
        wait()
        began = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _ring_rate(ranks: Sequence[int], kind: str, wait: Callable[[], object]) -> float | None:
    if len(ranks) < 2:
        return None
    place = ranks.index(dist.get_rank())
    after, before = ranks[(place + 1) % len(ranks)], ranks[place - 1]
    sent = torch.zeros(LINK_BYTES[kind], dtype=torch.uint8, device=kind)
    received = torch.empty_like(sent)

    def exchange() -> None:
        messages = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
        for message in dist.batch_isend_irecv(messages):
            message.wait()

    return sent.nbytes / _least_seconds(exchange, wait)


def slowest(ranks: Sequence[RankRates], cluster: Cluster) -> SlowestRank | None:
    """Return the rank furthest below the median in products, in memory or on its links; None where all are near it.

    The ranks of a step wait for it: it costs at most its lacking share of all devices. A slow link
    is of both its ranks.
    """
    worst: tuple[float, int, str] = (SLOW, 0, "")
    for name in ("products", "memory", "in_node", "between_nodes"):
        rates = [getattr(one, name) for one in ranks]
        if None in rates:
            continue
        median = statistics.median_high(rates)
        for one, rate in zip(ranks, rates, strict=True):
            worst = max(worst, (1 - rate / median, one.rank, name.replace("_", " ")))
    share, rank, cause = worst
    if not cause:
        return None
    price = cluster.usd_per_hour(len(ranks))
    return SlowestRank(rank=rank, cause=cause, share=share, usd_per_hour=None if price is None else share * price)


def fleet_of(ranks: Sequence[RankRates], cluster: Cluster, *, name: str) -> dict[str, Any]:
    """Return the values of a file of the group `cluster` for these ranks; the rest is `cluster`'s.

    A node's rate to others is the least of the nodes', and divided by the share of it that plans count on. A device in
    no table has the products' median as its peak.
    """
    first, num_nodes = ranks[0], len({one.node for one in ranks})
    fleet = {"_target_": f"{Cluster.__module__}.{Cluster.__qualname__}", **asdict(cluster), "name": name}
    fleet |= {"num_nodes": num_nodes, "devices_per_node": len(ranks) // num_nodes}
    fleet |= {"device": first.device if find_device(first.device) else None, "device_network_bytes_per_second": None}
    if fleet["device"] is None:
        fleet["peak_flops"] = float(f"{statistics.median(one.products for one in ranks):.3g}")
    by_node = [
        sum(one.between_nodes or 0.0 for one in ranks if one.node == node) for node in {one.node for one in ranks}
    ]
    fleet["network_bytes_per_second"] = float(f"{min(by_node) / LINKS:.3g}") if num_nodes > 1 else None
    return fleet


def to_json(ranks: Sequence[RankRates], slow: SlowestRank | None, fleet: Path) -> dict[str, Any]:
    """Return the measurements as plain values; rates are per second."""
    return {"ranks": [asdict(one) for one in ranks], "slowest": slow and asdict(slow), "fleet": str(fleet)}
