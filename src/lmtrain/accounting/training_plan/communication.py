"""One device's bytes sent in a step, and their seconds, by strategy.

Ring algorithms: an all-reduce of n bytes over W ranks sends 2 (W - 1) / W x n from each, a gather or a scatter half of
it. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009), and arXiv 1910.02054 section 7.
"""

from dataclasses import dataclass, replace

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.options.strategy import Collective, ModelSpread


@dataclass(frozen=True, kw_only=True)
class CommunicationVolume:
    """One device's bytes sent for one optimizer step; `seconds` None where the rate of a link is unknown."""

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
    spread: ModelSpread,
    num_parameters: int,
    *,
    cluster: Cluster,
    num_ranks: int,
    accumulation_micro_steps: int,
    gathered_value_bytes: int = 2,
    gradient_value_bytes: int = 4,
) -> CommunicationVolume:
    """Count a device's bytes sent: gradients once a step, and gathered weights for every micro-step."""
    sent = list(
        spread.collectives(
            num_ranks=num_ranks,
            devices_per_node=devices_in_a_node(cluster, num_ranks),
            gathered=num_parameters * gathered_value_bytes,
            reduced=num_parameters * gradient_value_bytes,
            micro_steps=accumulation_micro_steps,
        )
    )
    return CommunicationVolume(
        gathered_bytes=round(sum(each.gathered_bytes for each in sent)),
        reduced_bytes=round(sum(each.reduced_bytes for each in sent)),
        bytes_per_second=_mean_rate(cluster, sent),
    )


def step_communication(
    cluster: Cluster, batch: BatchPlan, *, spread: ModelSpread, num_parameters: int, gathered_value_bytes: int
) -> CommunicationVolume:
    """Return a device's bytes sent in a step of a batch."""
    return communication(
        spread,
        num_parameters,
        cluster=cluster,
        num_ranks=batch.num_ranks,
        accumulation_micro_steps=batch.accumulation_micro_steps,
        gathered_value_bytes=gathered_value_bytes,
    )


def devices_in_a_node(cluster: Cluster, num_ranks: int) -> int:
    """Return the ranks of one node: all of them where the cluster has one."""
    return num_ranks if cluster.num_nodes == 1 else min(num_ranks, cluster.devices_per_node)


def _mean_rate(cluster: Cluster, sent: list[Collective]) -> float | None:
    """Return the bytes per second over collectives one after the other; None where the rate of a link is not known."""
    if len({each.over for each in sent}) <= 1:
        return _rate(cluster, sent[0].over) if sent else link_rate(cluster)
    seconds = 0.0
    for each in sent:
        if not (rate := _rate(cluster, each.over)):
            return None
        seconds += (each.gathered_bytes + each.reduced_bytes) / rate
    return sum(each.gathered_bytes + each.reduced_bytes for each in sent) / seconds


def _rate(cluster: Cluster, over: str) -> float | None:
    if over == "node":
        return link_rate(replace(cluster, num_nodes=1))
    rate, network = link_rate(cluster), cluster.network_bytes_per_second
    if over == "nodes" and rate and network:  # a ring for each device, all at once
        return min(rate, network / cluster.devices_per_node)
    return rate


def link_rate(cluster: Cluster) -> float | None:
    """Return the bytes per second and device of rings over the cluster: the lesser of a node's link and its network.

    A ring enters and leaves a node once: its bytes cross the network as often as one device sends them; rings
    starting at each network card share them out. Source: NCCL's rings, one for each card.
    """
    device = cluster.known_device
    link = device.link_bytes_per_second if device else None
    if cluster.num_nodes == 1 or link is None:
        return link
    if cluster.network_bytes_per_second is None:
        return None
    return min(link, cluster.network_bytes_per_second)
