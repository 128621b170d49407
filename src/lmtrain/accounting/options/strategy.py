"""A strategy's own facts, for plans: its shards, its devices, its casts and messages.

Neighbouring ranks hold the shards of one copy of the model; copies follow one another.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from lmtrain.accounting.model.memory import ONE_STAGE, Pipeline
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError

# The strategies of one mesh, parallel/mesh.py: all but the first are shorthands with few of its settings.
MeshOption = Literal["mesh", "fsdp", "hsdp", "fsdp_tensor", "tensor", "context", "pipeline"]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Each device's sent bytes in a step within its group of `num_ranks` ranks, `stride` apart from one another.

    They are a mean over `every_steps` steps; one of these sends them all. `is_exchange`: each rank has another message
    for each other rank, where rings pass the same ones on.
    """

    group: Literal["tensor groups", "context groups", "expert groups", "stages", "shards", "copies"]
    num_ranks: int
    stride: int = 1
    every_steps: int = 1
    gathered_bytes: float = 0.0
    reduced_bytes: float = 0.0
    num_gathers: float = 0.0
    num_reductions: float = 0.0
    is_exchange: bool = False

    @property
    def num_bytes(self) -> float:
        """Add both directions of work up."""
        return self.gathered_bytes + self.reduced_bytes

    @property
    def is_awaited(self) -> bool:
        """Return whether computing waits for the messages, where they are not of weights or gradients."""
        return self.group not in ("shards", "copies")


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The residual stream of a device's micro-batch: its tokens, the bytes of them all, and its layers.

    `share_again` is the share of layers with a second forward pass in the backward pass. `attention_bytes` are those of
    all layers' queries, keys, values and mixed values, `kv_bytes` of keys and values alone, of `num_kv_heads` a layer;
    `expert_bytes` of each token's copies for its experts, `stage_bytes` what one stage of a pipeline sends to the next,
    and `tied_bytes` the gradient of a table on the first stage and the last. `num_future_tokens` of the layers are
    modules of them.
    """

    num_tokens: int
    num_bytes: float
    num_layers: int
    share_again: float = 0.0
    attention_bytes: float = 0.0
    kv_bytes: float = 0.0
    num_kv_heads: int = 0
    expert_bytes: float = 0.0
    stage_bytes: float = 0.0
    tied_bytes: float = 0.0
    num_future_tokens: int = 0

    def sent(self, num_ranks: int) -> float:
        """Return the bytes sent by one of `num_ranks` ranks in a micro-step for the joint products of its layers.

        A layer gathers twice and scatters twice, the backward pass the other way round; again without the last scatter,
        an unread sum. The embedding is summed on all ranks and the last norm gathered; a module of future tokens
        gathers both for itself. Its loss and the model's take of a token's logits the largest, the sum and the right
        one, in fp32.
        """
        moves = (8 + 3 * self.share_again) * self.num_layers + 5 + 4 * self.num_future_tokens
        of_loss = 2 * 3 * 4 * self.num_tokens * (1 + self.num_future_tokens)
        return (moves * self.num_bytes + of_loss) * (num_ranks - 1) / num_ranks

    def exchanged(self, num_ranks: int) -> float:
        """Return the bytes sent by one of `num_ranks` ranks in a micro-step between slices and heads.

        Of its slice all leave but its own heads': queries, keys and values on their way into attention, mixed values on
        their way out, the gradients of both in the backward pass, and once more those of layers computed again.
        """
        return (2 + self.share_again) * self.attention_bytes * (num_ranks - 1) / num_ranks**2

    def gathered(self, num_ranks: int) -> float:
        """Return the bytes sent by one of `num_ranks` ranks in a micro-step for the keys and values of all slices.

        They are gathered, their gradients scattered back, and gathered once more in layers computed again.
        """
        return (2 + self.share_again) * self.kv_bytes * (num_ranks - 1) / num_ranks

    def dispatched(self, num_ranks: int) -> float:
        """Return the bytes sent by one of `num_ranks` ranks in a micro-step for experts elsewhere, evenly chosen.

        Tokens on their way to experts and back, the gradients of both in the backward pass, and once more those of
        layers computed again.
        """
        return (4 + 2 * self.share_again) * self.expert_bytes * (num_ranks - 1) / num_ranks

    def ringed(self, num_ranks: int) -> float:
        """Return the bytes sent by one of `num_ranks` ranks in a micro-step for attention round a ring.

        Keys and values of each slice visit all other ranks, with their gradients in the backward pass.
        """
        return (3 + self.share_again) * self.kv_bytes * (num_ranks - 1) / num_ranks


@dataclass(frozen=True, kw_only=True)
class ModelSpread:
    """How a strategy spreads a model; the plain case keeps all of it on every rank and averages gradients.

    `shards_over` None shards nothing; otherwise weights, gradients and optimizer state are cut over all ranks, or
    over a number of neighbours, and the shards are copied across the others: across `copies` of them all.
    `casts_parameters` computes with weights in the format of the products: no copy is kept. `reshard_after_forward`
    gathers weights again for the backward pass; otherwise a whole model in the format of the products is there at
    the end of the forward pass.
    `reduces_every_micro_step` sends shards' gradients at each micro-batch; otherwise each rank keeps whole ones
    between those of a step. `keeps_gradients` in its own memory between steps, where it reduces them; else they are
    freed after each. `savings` are further settings, each for less memory in more time, KEY=true. `reduces_alone`:
    a single rank reduces its gradients in the backward pass too. `gradient_bytes` are those of a gradient as it is
    sent. `tensor_ranks` neighbours compute each product together, with a part of every matrix, on the same tokens;
    shards and copies are then of a rank's part. `context_ranks` neighbours have a slice each of the same sequences,
    exchanged with heads (Ulysses) where they divide the heads of keys, else gathered, or round a ring, where the
    slices `go_round` (published rows: no strategy here does). `expert_ranks` neighbours have a share of each layer's
    experts each, for the tokens of all of them. The stages of a `pipeline` are next to one another, outside of tensor
    groups. `is_general`: another strategy is the usual name of most of its settings. `chooses`: a plan for a known
    device may put another strategy in its place. `most_ranks` None sets no limit. `meets_every_steps`: each rank is a
    worker stepping by its own gradients, and sends every weight's delta once in that number of steps; None averages
    gradients at every step. `kept_bytes` are those of a parameter next to weight, gradient and optimizer state.
    """

    group: ClassVar[str] = "strategy"
    saying: ClassVar[str] = "what it shards and sends"

    shards_over: int | Literal["all ranks"] | None = None
    casts_parameters: bool = False
    copies: int | None = None
    reshard_after_forward: bool = True
    reduces_every_micro_step: bool = False
    savings: tuple[str, ...] = ()
    keeps_gradients: bool = False
    reduces_alone: bool = True
    gradient_bytes: float = 4
    tensor_ranks: int = 1
    context_ranks: int = 1
    go_round: bool = False
    expert_ranks: int = 1
    pipeline: Pipeline = ONE_STAGE
    chooses: bool = False
    is_general: bool = False
    most_ranks: int | None = None
    least_ranks: int = 1
    meets_every_steps: int | None = None
    kept_bytes: int = 0

    @property
    def cuts_parameters(self) -> bool:
        """Return whether a device holds less than whole parameters."""
        return self.shards_over is not None or self.tensor_ranks > 1

    @property
    def replicates(self) -> bool:
        """Return whether each of any number of ranks keeps the whole model, the same on all."""
        return not self.cuts_parameters and self.takes_many and self.meets_every_steps is None

    @property
    def takes_many(self) -> bool:
        """Return whether it trains on any number of ranks."""
        return self.most_ranks is None and self.pipeline.num_stages == 1 and not self.is_general

    @property
    def equals_one_process(self) -> bool:
        """Return whether a run's numbers are those of one process, to the rounding of sums."""
        return self.meets_every_steps is None

    @property
    def can_be_chosen(self) -> bool:
        """Return whether it trains several ranks to the numbers of one process, with groups of some size."""
        return self.most_ranks is None and self.equals_one_process and not self.chooses

    @property
    def shards_most(self) -> bool:
        """Return whether all ranks share one copy of the model, each with other tokens."""
        return self.shards_over == "all ranks" and self.tensor_ranks == self.context_ranks == 1

    def num_shards(self, num_ranks: int) -> int:
        """Return the number of ranks sharing the model, or the same part of it in as many tensor groups."""
        if self.shards_over is None:
            return 1
        whole = num_ranks // (self.tensor_ranks * self.pipeline.num_stages)
        return whole // (self.copies or 1) if self.shards_over == "all ranks" else min(whole, self.shards_over)

    def num_savers(self, num_ranks: int) -> int:
        """Return the ranks with a part of one checkpoint each to copy and write; copies of a shard take turns."""
        return num_ranks if self.cuts_parameters else self.pipeline.num_stages

    def require_ranks(self, num_ranks: int) -> None:
        """Refuse a number of ranks not divided by its groups, or too few of them.

        Raises:
            ConfigurationError: With the nearest size of a group, or number of ranks.
        """
        if num_ranks < self.least_ranks:
            raise ConfigurationError(
                f"trainer.devices x trainer.num_nodes={num_ranks} is below {self.least_ranks}, the fewest ranks of "
                f"the strategy. Did you mean trainer.devices={self.least_ranks}?"
            )
        left, most_shards = num_ranks, self.shards_over if isinstance(self.shards_over, int) else self.context_ranks
        sizes = {
            "pipeline_size": self.pipeline.num_stages,
            "tensor_size": self.tensor_ranks,
            "context_size": self.context_ranks,
            "shard_size": most_shards // self.context_ranks,
            "replicate_size": self.copies or 1,
        }
        later = math.prod(max(1, size) for size in sizes.values())
        for key, size in sizes.items():
            later //= max(1, size)
            _require_divisor(f"strategy.{key}", size, left, of=num_ranks, later=later)
            left //= size
        if left > 1 and self.copies is not None and self.shards_over != "all ranks":
            raise ConfigurationError(
                f"strategy.replicate_size: must leave no rank of {num_ranks}, got {self.copies}, which leaves a factor "
                f"of {left}. Did you mean {self.copies * left}?"
            )
        _require_divisor("strategy.expert_size", self.expert_ranks, self.num_shards(num_ranks), of=num_ranks)

    def collectives(
        self,
        *,
        num_ranks: int,
        gathered: float,
        num_gradients: float,
        micro_steps: int,
        stream: Stream | None = None,
        num_summed: float = 0.0,
        share_of_experts: float = 0.0,
        share_of_stage: float = 1.0,
    ) -> Iterator[Collective]:
        """Give a device's messages in a step for `gathered` bytes of whole weights and `num_gradients`.

        `stream` is a micro-step's; None is of a model without layers. Deltas count as gradients, by their mean
        over the steps between them. The gradients of `num_summed` weights, whole in a tensor group, are added up there.
        `share_of_experts` is of weights and gradients alike: the ranks of an expert group have different ones;
        `share_of_stage` is of the fullest stage of a pipeline.

        Rings: an all-reduce of n bytes over W ranks sends 2 (W - 1) / W x n, a gather or a scatter half of it.
        """
        parts, stages, shards = self.tensor_ranks, self.pipeline.num_stages, self.num_shards(num_ranks)
        gathered *= share_of_stage
        reduced = num_gradients * share_of_stage * self.gradient_bytes / parts / (self.meets_every_steps or 1)
        if stream:
            yield from self._of_stream(stream, micro_steps, summed=num_summed * self.gradient_bytes / shards)
        num_blocks = 1 + (stream.num_layers // stages if stream else 0)
        apart = share_of_experts if self.expert_ranks > 1 else 0.0
        of_shards = [(shards, parts * stages, 1 - apart, num_blocks)]
        if apart:
            sharing = self.expert_ranks
            of_shards.append((shards // sharing, parts * stages * sharing, apart / sharing, num_blocks - 1))
        passes = (2 if self.reshard_after_forward else 1) * micro_steps
        scatters = micro_steps if self.reduces_every_micro_step else 1
        for num_shards, stride, share, num_messages in of_shards:
            if num_shards == 1:
                continue
            rest = share * (num_shards - 1) / num_shards
            yield Collective(
                group="shards",
                num_ranks=num_shards,
                stride=stride,
                gathered_bytes=rest * gathered / (parts * stages) * passes,
                reduced_bytes=rest * reduced * scatters,
                num_gathers=num_messages * passes,
                num_reductions=num_messages * scatters,
            )
        if (copies := num_ranks // (shards * parts * stages)) > 1:
            yield Collective(
                group="copies",
                num_ranks=copies,
                stride=shards * parts * stages,
                every_steps=self.meets_every_steps or 1,
                reduced_bytes=2 * (copies - 1) / copies * reduced / shards,
                num_reductions=2 * sum(messages for *_, messages in of_shards) / (self.meets_every_steps or 1),
            )

    def _of_stream(self, stream: Stream, micro_steps: int, *, summed: float) -> Iterator[Collective]:
        """Give the messages of ranks that share the tokens or the layers of a micro-batch."""
        stages = self.pipeline.num_stages
        layers = stream.num_layers / stages * micro_steps
        if (parts := self.tensor_ranks) > 1:
            moves = (8 + 3 * stream.share_again) * layers
            sent = stream.sent(parts) * micro_steps / stages / self.context_ranks
            yield Collective(
                group="tensor groups",
                num_ranks=parts,
                gathered_bytes=sent,
                reduced_bytes=2 * (parts - 1) / parts * summed,
                num_gathers=moves,
                num_reductions=1 if summed else 0,
            )
        if (slices := self.context_ranks) > 1:
            exchanges = not self.go_round and stream.num_kv_heads % (slices * parts) == 0
            alone = stream.ringed(slices) if self.go_round else stream.gathered(slices)
            sent = stream.exchanged(slices) if exchanges else alone
            moves = (8 + 4 * stream.share_again if exchanges else 2 + stream.share_again) * layers
            yield Collective(
                group="context groups",
                num_ranks=slices,
                stride=parts,
                gathered_bytes=sent * micro_steps / stages / parts,
                num_gathers=moves,
                is_exchange=exchanges,
            )
        if (sharing := self.expert_ranks) > 1:
            sent = stream.dispatched(sharing) * micro_steps / stages / self.context_ranks
            moves = (4 + 2 * stream.share_again) * layers
            stride = parts * stages
            yield Collective(
                group="expert groups",
                num_ranks=sharing,
                stride=stride,
                gathered_bytes=sent,
                num_gathers=moves,
                is_exchange=True,
            )
        if stages > 1:
            yield self._of_stages(stream, micro_steps)

    def _of_stages(self, stream: Stream, micro_steps: int) -> Collective:
        """Return the messages of the stage that sends most."""
        stages, neighbours = self.pipeline.num_stages, self.tensor_ranks * self.context_ranks
        moves = micro_steps * max(self.pipeline.num_sent(stage=stage) for stage in range(stages))
        return Collective(
            group="stages",
            num_ranks=stages,
            stride=neighbours,
            gathered_bytes=moves * stream.stage_bytes / neighbours,
            reduced_bytes=stream.tied_bytes,
            num_gathers=moves,
            num_reductions=1 if stream.tied_bytes else 0,
        )


def _require_divisor(key: str, size: int, left: int, *, of: int, later: int = 1) -> None:
    """Refuse a group's size that does not divide the ranks left by other groups; a product of `later` ones follows."""
    if size >= 1 and left % size == 0:
        return
    rest = left // later if left % later == 0 else left
    nearest = max(one for one in range(1, max(1, min(size, rest)) + 1) if rest % one == 0)
    others = "" if left == of else f", of which other groups leave {left}"
    raise ConfigurationError(
        f"{key}={size} does not divide {format_count(of, 'rank')} (trainer.devices x trainer.num_nodes{others}). "
        f"Did you mean {nearest}?"
    )
