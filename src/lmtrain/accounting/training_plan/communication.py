"""One device's bytes sent in a step, and their seconds, by strategy.

Ring algorithms: an all-reduce of n bytes over W ranks sends 2 (W - 1) / W x n from each, a gather or a scatter half of
it. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009), and arXiv 1910.02054 section 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.options.strategy import Collective, ModelSpread, Stream


@dataclass(frozen=True, kw_only=True)
class CommunicationVolume:
    """One device's bytes sent for one optimizer step, by group too; `seconds` None where a link's rate is unknown."""

    gathered_bytes: int
    reduced_bytes: int
    bytes_per_second: float | None
    groups: tuple[Collective, ...] = ()

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
    num_frozen_parameters: int = 0,
    stream: Stream | None = None,
) -> CommunicationVolume:
    """Count a device's bytes sent: gradients once a step, gathered weights and the stream for every micro-step."""
    sent = tuple(
        spread.collectives(
            num_ranks=num_ranks,
            gathered=num_parameters * gathered_value_bytes,
            num_gradients=num_parameters - num_frozen_parameters,
            micro_steps=accumulation_micro_steps,
            stream=stream,
        )
    )
    return CommunicationVolume(
        gathered_bytes=round(sum(each.gathered_bytes for each in sent)),
        reduced_bytes=round(sum(each.reduced_bytes for each in sent)),
        bytes_per_second=_mean_rate(cluster, sent),
        groups=sent,
    )


def step_communication(
    cluster: Cluster,
    batch: BatchPlan,
    *,
    spread: ModelSpread,
    shape: ModelShape,
    gathered_value_bytes: int,
    share_again: float = 0.0,
    share_of_kv_heads: float = 1.0,
) -> CommunicationVolume:
    """Return a device's bytes sent in a step of a batch, `share_again` of its layers computed twice.

    `share_of_kv_heads` are the heads of keys, and of values, for each head of queries.
    """
    num_tokens = batch.micro_batch_tokens
    stream = Stream(
        num_tokens=num_tokens,
        num_bytes=num_tokens * shape.width * gathered_value_bytes,
        num_layers=len(shape.attention),
        share_again=share_again,
        attention_bytes=num_tokens * _attention_width(shape, share_of_kv_heads) * gathered_value_bytes,
    )
    return communication(
        spread,
        shape.num_parameters,
        cluster=cluster,
        num_ranks=batch.num_ranks,
        accumulation_micro_steps=batch.accumulation_micro_steps,
        gathered_value_bytes=gathered_value_bytes,
        num_frozen_parameters=shape.num_frozen_parameters,
        stream=stream,
    )


def _attention_width(shape: ModelShape, share_of_kv_heads: float) -> float:
    """Return a token's numbers in queries, keys, values and mixed values of all layers."""
    return sum(layer.num_heads * layer.head_width for layer in shape.attention) * (2 + 2 * share_of_kv_heads)


def _mean_rate(cluster: Cluster, sent: Sequence[Collective]) -> float | None:
    """Return the bytes per second over collectives one after the other; None where the rate of a link is not known."""
    if not sent:
        return link_rate(cluster)
    seconds = 0.0
    for each in sent:
        if not (rate := group_rate(cluster, each)):
            return None
        seconds += each.num_bytes / rate
    num_bytes = sum(each.num_bytes for each in sent)
    return num_bytes / seconds if num_bytes else group_rate(cluster, sent[0])


def group_rate(cluster: Cluster, sent: Collective) -> float | None:
    """Return the bytes per second and device of a group, None unknown; beyond a node, groups share its network."""
    in_a_node = cluster.devices_per_node
    if cluster.num_nodes == 1 or in_a_node % (sent.stride * sent.num_ranks) == 0:
        return link_rate(replace(cluster, num_nodes=1))
    rate, network = link_rate(cluster), cluster.network_bytes_per_second
    if rate and network:
        return min(rate, network / min(sent.stride, in_a_node))
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
