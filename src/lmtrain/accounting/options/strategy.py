"""What a strategy says of itself, for plans: what it shards, over how many devices, what it casts and sends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

Reach = Literal["all ranks", "node"]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Bytes that each device sends in a step; `over` "nodes" each device has a ring of its own."""

    gathered_bytes: float = 0.0
    reduced_bytes: float = 0.0
    over: Literal["all ranks", "node", "nodes"] = "all ranks"


@dataclass(frozen=True, kw_only=True)
class ModelSpread:
    """How a strategy spreads a model; the plain case keeps all of it on every rank and averages gradients.

    `shards_over` None shards nothing; otherwise weights, gradients and optimizer state are cut over all ranks, or over
    those of one node and copied across nodes. `casts_parameters` computes with weights in the format of the products,
    so that no copy is kept. `reshard_after_forward` gathers weights again for the backward pass. `reduces_alone`: a
    single rank reduces its gradients in the backward pass too. `most_ranks` None sets no limit.
    """

    group: ClassVar[str] = "strategy"
    saying: ClassVar[str] = "what it shards and sends"

    shards_over: Reach | None = None
    casts_parameters: bool = False
    reshard_after_forward: bool = True
    reduces_alone: bool = True
    most_ranks: int | None = None

    @property
    def replicates(self) -> bool:
        """Tell whether each of any number of ranks keeps the whole model."""
        return self.shards_over is None and self.most_ranks is None

    @property
    def shards_most(self) -> bool:
        """Tell whether all ranks share one copy of the model."""
        return self.shards_over == "all ranks"

    def num_shards(self, num_ranks: int, devices_per_node: int) -> int:
        """Return the number of devices that share one copy of the model."""
        if self.shards_over is None:
            return 1
        return num_ranks if self.shards_over == "all ranks" else min(num_ranks, devices_per_node)

    def collectives(
        self, *, num_ranks: int, devices_per_node: int, gathered: float, reduced: float, micro_steps: int
    ) -> Iterator[Collective]:
        """Give what a device sends in a step for `gathered` bytes of whole weights and `reduced` of whole gradients.

        Rings: an all-reduce of n bytes over W ranks sends 2 (W - 1) / W x n, a gather or a scatter half of it.
        """
        shards = self.num_shards(num_ranks, devices_per_node)
        if shards > 1:
            passes = (2 if self.reshard_after_forward else 1) * micro_steps
            rest = (shards - 1) / shards
            over = "node" if self.shards_over == "node" else "all ranks"
            yield Collective(gathered_bytes=rest * gathered * passes, reduced_bytes=rest * reduced, over=over)
        if (copies := num_ranks // shards) > 1:
            over = "all ranks" if shards == 1 else "nodes"
            yield Collective(reduced_bytes=2 * (copies - 1) / copies * reduced / shards, over=over)
