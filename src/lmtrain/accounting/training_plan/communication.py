"""Bytes that one device sends in a step, and the seconds they take, by strategy.

Ring algorithms: an all-reduce of n bytes over W ranks sends 2 (W - 1) / W x n from each, a gather or a scatter half of
it. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009), and arXiv 1910.02054 section 7.
"""

from dataclasses import dataclass
from typing import Literal

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster

Strategy = Literal["single", "ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class Communication:
    """What one device sends for one optimizer step; `seconds` None where the rate of a link is not known."""

    gathered_bytes: int
    reduced_bytes: int
    bytes_per_second: float | None

    @property
    def total_bytes(self) -> int:
        """Add both directions of work up."""
        return self.gathered_bytes + self.reduced_bytes

    @property
    def seconds(self) -> float | None:
        """Return how long the bytes take at the slowest link on their way, none of it hidden."""
        if self.total_bytes == 0:
            return 0.0
        return self.total_bytes / self.bytes_per_second if self.bytes_per_second else None


def communication(
    strategy: Strategy,
    num_parameters: int,
    *,
    num_ranks: int,
    accumulation_micro_steps: int,
    bytes_per_second: float | None,
    gathered_value_bytes: int = 2,
    gradient_value_bytes: int = 4,
    reshard_after_forward: bool = True,
) -> Communication:
    """Count what a device sends: DDP reduces gradients once a step; FSDP also gathers weights for every micro-step.

    With `reshard_after_forward` weights are gathered again for the backward pass.
    """
    rest = (num_ranks - 1) / num_ranks
    reduced = gathered = 0.0
    if strategy == "ddp":
        reduced = 2 * rest * num_parameters * gradient_value_bytes
    elif strategy == "fsdp":
        reduced = rest * num_parameters * gradient_value_bytes
        passes = (2 if reshard_after_forward else 1) * accumulation_micro_steps
        gathered = rest * num_parameters * gathered_value_bytes * passes
    return Communication(
        gathered_bytes=round(gathered), reduced_bytes=round(reduced), bytes_per_second=bytes_per_second
    )


def step_communication(
    cluster: Cluster, batch: BatchPlan, *, strategy: str, num_parameters: int, gathered_value_bytes: int
) -> Communication:
    """Return what a device sends in a step of several ranks; `strategy` is "fsdp" or one that copies the model."""
    return communication(
        "fsdp" if strategy == "fsdp" and batch.num_ranks > 1 else "ddp",
        num_parameters,
        num_ranks=batch.num_ranks,
        accumulation_micro_steps=batch.accumulation_micro_steps,
        bytes_per_second=link_rate(cluster),
        gathered_value_bytes=gathered_value_bytes,
    )


def link_rate(cluster: Cluster) -> float | None:
    """Return the bytes per second and device of rings over the cluster: the lesser of a node's link and its network.

    A ring enters and leaves a node once, so that its bytes cross the network as often as one device sends them; rings
    that start at each network card share them out. Source: NCCL's rings, one for each card.
    """
    device = cluster.known_device
    link = device.link_bytes_per_second if device else None
    if cluster.num_nodes == 1 or link is None:
        return link
    if cluster.network_bytes_per_second is None:
        return None
    return min(link, cluster.network_bytes_per_second)
