"""What a strategy says of itself, for plans: what it shards, over how many devices, what it casts and sends.

Neighbouring ranks hold the shards of one copy of the model; copies follow one another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from lmtrain.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Bytes that each device sends in a step within its group of `num_ranks` ranks, `stride` apart from one another."""

    group: Literal["shards", "copies"]
    num_ranks: int
    stride: int = 1
    gathered_bytes: float = 0.0
    reduced_bytes: float = 0.0

    @property
    def num_bytes(self) -> float:
        """Add both directions of work up."""
        return self.gathered_bytes + self.reduced_bytes


@dataclass(frozen=True, kw_only=True)
class ModelSpread:
    """How a strategy spreads a model; the plain case keeps all of it on every rank and averages gradients.

    `shards_over` None shards nothing; otherwise weights, gradients and optimizer state are cut over all ranks, or over
    so many neighbours, and the shards are copied across the others. `casts_parameters` computes with weights in the
    format of the products, so that no copy is kept. `reshard_after_forward` gathers weights again for the backward
    pass. `reduces_alone`: a single rank reduces its gradients in the backward pass too. `gradient_bytes` are those of
    a gradient as it is sent. `most_ranks` None sets no limit.
    """

    group: ClassVar[str] = "strategy"
    saying: ClassVar[str] = "what it shards and sends"

    shards_over: int | Literal["all ranks"] | None = None
    casts_parameters: bool = False
    reshard_after_forward: bool = True
    reduces_alone: bool = True
    gradient_bytes: int = 4
    most_ranks: int | None = None

    @property
    def most_shards(self) -> int | None:
        """Return the number that the shards of a copy are cut over; None cuts over all ranks, or nothing."""
        return self.shards_over if isinstance(self.shards_over, int) else None

    def num_shards(self, num_ranks: int) -> int:
        """Return the number of devices that share one copy of the model."""
        if self.shards_over is None:
            return 1
        return num_ranks if self.shards_over == "all ranks" else min(num_ranks, self.shards_over)

    def require_ranks(self, num_ranks: int) -> None:
        """Refuse a number of ranks that the shards of a copy do not divide.

        Raises:
            ConfigurationError: With the nearest number of shards.
        """
        size = self.most_shards
        if size is None or (size >= 1 and num_ranks % size == 0):
            return
        nearest = max(one for one in range(1, max(1, min(size, num_ranks)) + 1) if num_ranks % one == 0)
        raise ConfigurationError(
            f"strategy.shard_size={size} does not divide {num_ranks} rank{'s' * (num_ranks != 1)} "
            f"(trainer.devices x trainer.num_nodes); nearest valid: {nearest}."
        )

    def collectives(
        self, *, num_ranks: int, gathered: float, num_gradients: float, micro_steps: int
    ) -> Iterator[Collective]:
        """Give what a device sends in a step for `gathered` bytes of whole weights and so many gradients.

        Rings: an all-reduce of n bytes over W ranks sends 2 (W - 1) / W x n, a gather or a scatter half of it.
        """
        shards, reduced = self.num_shards(num_ranks), num_gradients * self.gradient_bytes
        if shards > 1:
            passes = (2 if self.reshard_after_forward else 1) * micro_steps
            rest = (shards - 1) / shards
            yield Collective(
                group="shards",
                num_ranks=shards,
                gathered_bytes=rest * gathered * passes,
                reduced_bytes=rest * reduced,
            )
        if (copies := num_ranks // shards) > 1:
            yield Collective(
                group="copies",
                num_ranks=copies,
                stride=shards,
                reduced_bytes=2 * (copies - 1) / copies * reduced / shards,
            )
