"""Memory of training on one device, by kind, at the fullest moment of a step; and the stages of a pipeline.

Activations are an argument, measured on the real graph elsewhere. Pipeline: arXiv 2104.04473 section 2.2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, Literal

from lmtrain.accounting.batches import MICRO_BATCH, BatchPlan
from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.model.optimizer_state import OptimizerState
from lmtrain.errors import ConfigurationError

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"]
# Of the wait of 1F1B, where a backward pass takes twice a forward pass: gradients of weights fill the rest, arXiv
# 2401.10241 section 2.3 and, for the V, 2405.15362.
WAITS: Final[Mapping[str, float]] = {"zero_bubble": 1 / 3, "zbv": 0.0}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Neighbouring ranks with a stage of the layers each; a single stage is the plain case.

    `num_chunks` are the parts of a rank's layers, with a micro-batch's visits to the others in between: 1F1B with
    several is interleaved 1F1B. GPipe makes every forward pass of a step before its first backward pass. The schedules
    without most of the wait compute gradients of weights apart from those of activations; in `zbv` a rank has one part
    on the way there and one on the way back.

    Raises:
        ConfigurationError: A number of chunks that the schedule does not have.
    """

    num_stages: int = 1
    num_chunks: int = 1
    schedule: Schedule = "1f1b"

    def __post_init__(self) -> None:
        least = 2 if self.schedule in ("interleaved", "zbv") else 1
        most = {"gpipe": 1, "zbv": 2}.get(self.schedule, self.num_chunks)
        if not least <= self.num_chunks <= most:
            rule = f"{least}" if self.schedule in ("gpipe", "zbv") else f"{least} or more"
            raise ConfigurationError(
                f"strategy.num_chunks: must be {rule} with strategy.schedule={self.schedule}, got {self.num_chunks}. "
                f"Did you mean {least}?"
            )

    @property
    def num_parts(self) -> int:
        """Return the parts of the model over all ranks."""
        return self.num_stages * self.num_chunks

    @property
    def schedule_run(self) -> Schedule:
        """Return the schedule by its full name."""
        return "interleaved" if self.schedule == "1f1b" and self.num_chunks > 1 else self.schedule

    def require_layers(self, num_layers: int) -> None:
        """Refuse more parts than layers."""
        if self.num_stages > 1 and self.num_parts > num_layers:
            chunks, most = num_layers // self.num_stages, max(1, num_layers // self.num_chunks)
            stages = max(size for size in range(1, most + 1) if self.num_stages % size == 0)  # it divides the ranks too
            fewer = f"num_chunks={chunks}" if 1 < chunks < self.num_chunks else f"pipeline_size={stages}"
            raise ConfigurationError(
                f"strategy.pipeline_size={self.num_stages} x strategy.num_chunks={self.num_chunks} are more parts than "
                f"the model's {num_layers} layers. Did you mean strategy.{fewer}?"
            )

    def require_micro_steps(self, batch: BatchPlan) -> None:
        """Refuse micro-steps that the schedule cannot lay out: fewer than stages, or rounds of unequal length."""
        if self.lays_out(batch.accumulation_micro_steps):
            return
        asked, total = batch.sequences_per_micro_step, batch.sequences_per_rank
        fits = [size for size in batch.micro_batches() if self.lays_out(total // size)]
        nearest = min(fits, key=lambda size: abs(size - asked), default=None)
        rounds = "" if self.schedule_run == "1f1b" else ", in rounds of as many each"
        raise ConfigurationError(
            f"{MICRO_BATCH}: must give a step at least strategy.pipeline_size={self.num_stages} micro-batches{rounds} "
            f"with strategy.schedule={self.schedule}, got {asked}, which gives {batch.accumulation_micro_steps}. "
            f"Did you mean {'strategy.schedule=gpipe' if nearest is None else nearest}?"
        )

    def lays_out(self, num_micro_steps: int) -> bool:
        """Return whether the schedule takes a step of these micro-steps."""
        if self.num_stages == 1 or self.schedule in ("gpipe", "zbv"):
            return True
        rounds = num_micro_steps // self.num_stages
        return rounds > 0 and (self.schedule_run == "1f1b" or num_micro_steps % rounds == 0)

    def bubble_share(self, num_micro_steps: int) -> float:
        """Return a stage's share of waiting in a step: (P - 1) / (m v + P - 1), or less of the wait."""
        waits = (self.num_stages - 1) * WAITS.get(self.schedule, 1.0)
        return waits / (num_micro_steps * self.num_chunks + waits)

    def kept_share(self, num_micro_steps: int, *, stage: int = 0) -> float:
        """Return a stage's activations at most, counted from 0, in those of one micro-batch of the whole model."""
        stages, chunks, later = self.num_stages, self.num_chunks, self.num_stages - 1 - stage
        in_flight = stages + (2 * later + 1 - stages) / chunks if chunks > 1 else later + 1
        in_flight = stages if self.schedule == "zbv" else in_flight
        return (num_micro_steps if self.schedule == "gpipe" else min(in_flight, num_micro_steps)) / stages

    def owner(self, part: int) -> int:
        """Return the stage that has a part of the model: round and round, or there and back."""
        turn, place = divmod(part, self.num_stages)
        return self.num_stages - 1 - place if self.schedule == "zbv" and turn else place

    def parts_of(self, stage: int) -> list[int]:
        """Return the parts that a stage has."""
        return [part for part in range(self.num_parts) if self.owner(part) == stage]

    def num_sent(self, *, stage: int) -> int:
        """Count the streams that a stage sends for a micro-batch: its own to the next part, gradients back."""
        neighbours = [other for part in self.parts_of(stage) for other in (part - 1, part + 1)]
        return sum(0 <= other < self.num_parts and self.owner(other) != stage for other in neighbours)

    def num_received(self, *, stage: int) -> int:
        """Count the streams with a buffer on a stage for each micro-batch of a step, as torch's stages keep them."""
        return sum((part > 0) + (part < self.num_parts - 1) for part in self.parts_of(stage))


@cache
def cut_evenly(costs: tuple[float, ...], num_parts: int) -> list[range]:
    """Cut layers into consecutive parts, at least one layer each, so that the longest takes the least time."""
    until = [0.0, *accumulate(costs)]

    @cache
    def cut(end: int, num: int) -> tuple[float, tuple[int, ...]]:
        """Return the time of the longest of `num` parts of the first `end` layers, and where each begins."""
        if num == 1:
            return until[end], (0,)
        tried = ((start, *cut(start, num - 1)) for start in range(num - 1, end))
        return min((max(longest, until[end] - until[start]), (*starts, start)) for start, longest, starts in tried)

    _, starts = cut(len(costs), num_parts)
    return [range(start, end) for start, end in pairwise((*starts, len(costs)))]


ONE_STAGE: Final = Pipeline()


# An allocator's bytes beyond those in use: blocks rounded up and split. torch.cuda.max_memory_reserved over
# max_memory_allocated is 1.02 to 1.08 with expandable segments.
ALLOCATOR_MARGIN: Final = 0.05
# A training process before its model, and the holes in the heap of a CPU for each byte of activations and of workspace,
# where freed memory is kept for the next step: measured on Linux with glibc, docs/log.md.
PROCESS_BYTES: Final = 784 * 10**6
COMPILER_BYTES: Final = 90 * 10**6  # more of a process that compiled its blocks
HEAP_SHARE: Final = 0.36
WORKSPACE_HEAP_SHARE: Final = 1.1
COMPILED_HEAP_SHARE: Final = 0.05  # of both: compiled blocks ask for few tensors, and use each again
LARGEST_KEPT_BYTES: Final = 1 << 30  # a larger tensor is mapped by itself, and leaves no hole
FORWARD: Final = "the end of the forward pass"  # moments of a step
BACKWARD: Final = "the end of the backward pass"
SENT: Final = "the last message of gradients"
SENT_BLOCK: Final = "the last message of a block's gradients"
STEP: Final = "the optimizer's step"
TENSORS_OF_A_WORKSPACE: Final = 3  # logits, their gradient, and log-probabilities


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Memory of training on a CPU next to its tensors, but for the holes in its heap.

    Weights and optimizer state of `snapshot_from_bytes` or more are copied for a save in the background; None copies
    nothing.
    """

    process_bytes: int
    snapshot_from_bytes: int | None = None


def shard_axis(shape: Sequence[int], num_shards: int) -> int:
    """Return the axis along which FSDP2 cuts a tensor: the first, or another where it has fewer rows than shards.

    It cuts only the first one into uneven parts (torch 2.13).
    """
    if len(shape) < 2 or shape[0] >= num_shards:
        return 0
    return next((axis for axis, size in enumerate(shape) if size and size % num_shards == 0), 0)


def _sides(shape: str) -> list[int]:
    return [int(side) for side in shape.split("x")]


@dataclass(frozen=True, kw_only=True)
class TrainedParameters:
    """Parameters as optimizer and sharding see them; `num_largest_block` is gathered at once by FSDP.

    `num_hidden_matrix` are those in matrices of the layers, updated by Muon; `num_outside_blocks` are embeddings,
    head and last norm, gathered together for the whole of a step. `num_vector` are norms, biases and scalars, the only
    ones kept in full by optimizers with factored or coarse state; `num_edge` counts the rows and columns of all
    other tensors, `num_long_edge` the longer of both for hidden matrices, the axis of optimizers' single values.
    `num_frozen` have neither gradients nor state;
    `num_frozen_block_matrix` of them are in matrices of the blocks. `num_largest_matrix` are those of the largest
    tensor of hidden matrices. `tensors` count the tensors of each shape, as 8x4096x4096, `whole_in_groups` those of
    them with several axes that no tensor group cuts.
    """

    num_total: int
    num_hidden_matrix: int
    num_largest_block: int
    num_outside_blocks: int
    num_vector: int = 0
    num_edge: int = 0
    num_long_edge: int = 0
    num_frozen: int = 0
    num_frozen_block_matrix: int = 0
    num_largest_matrix: int = 0
    tensors: Mapping[str, int] = field(default_factory=dict[str, int])
    whole_in_groups: Mapping[str, int] = field(default_factory=dict[str, int])

    def held(self, *, num_shards: int, tensor_ranks: int = 1) -> int:
        """Return the parameters of the fullest rank, each tensor cut as FSDP2 cuts it; vectors stay whole in a group.

        Parameters without known `tensors` are cut evenly.
        """
        if not self.tensors:
            return -(-self.num_total // (num_shards * tensor_ranks))
        total = 0
        for name, count in self.tensors.items():
            shape, num_whole = _sides(name), self.whole_in_groups.get(name, 0)
            numel, side = math.prod(shape), shape[shard_axis(shape, num_shards)]
            total += num_whole * -(-side // num_shards) * (numel // side)
            parts = tensor_ranks if len(shape) > 1 else 1
            if len(shape) == 2:
                shape[0] += -shape[0] % parts  # the fullest rank of a vocabulary that is not divided evenly
            numel, side = math.prod(shape), shape[shard_axis(shape, num_shards)]
            total += (count - num_whole) * -(-side // num_shards) * (numel // side) // parts
        return total

    @cached_property
    def num_stacked(self) -> int:
        """Return the numbers in stacks of matrices: those of experts."""
        return sum(count * math.prod(sides) for sides, count in self._stacks)

    def num_active_stacked(self, shape: ModelShape) -> int:
        """Return the numbers of the experts of one token."""
        return max(0, self.num_stacked - (shape.num_parameters - shape.num_active_parameters))

    @cached_property
    def _stacks(self) -> list[tuple[list[int], int]]:
        found = [(_sides(name), count) for name, count in self.tensors.items()]
        return [(sides, count) for sides, count in found if len(sides) == 3 and min(sides) > 1]

    def num_wide(self, width: int | None) -> int:
        """Count the numbers in matrices that a layer in fp8 of this `min_width` takes; None takes none."""
        sides = [(_sides(name), count) for name, count in self.tensors.items() if width]
        wide = [(one, count) for one, count in sides if len(one) == 2 and min(one) >= (width or 0)]
        found = sum(count * math.prod(one) for one, count in wide if not any(side % 16 for side in one))
        return max(0, min(found, self.num_hidden_matrix + self.num_frozen_block_matrix - self.num_stacked))

    def shared_out(self, num_ranks: int) -> "TrainedParameters":
        """Return those that a rank ever gathers where `num_ranks` share each layer's experts out."""
        elsewhere = self.num_stacked * (num_ranks - 1) // num_ranks
        num_layers = sum(count for _, count in self._stacks) // 2  # two stacks each
        if not elsewhere or not num_layers:
            return self
        return replace(
            self,
            num_total=self.num_total - elsewhere,
            num_largest_block=self.num_largest_block - elsewhere // num_layers,
        )

    @property
    def num_whole_in_groups(self) -> int:
        """Return the numbers that each rank of a tensor group has whole, with its part of their gradients."""
        return self.num_vector + sum(count * math.prod(_sides(name)) for name, count in self.whole_in_groups.items())

    @property
    def num_trained(self) -> int:
        """Return those with a gradient."""
        return self.num_total - self.num_frozen

    def num_block_matrix(self, shape: ModelShape) -> int:
        """Return the parameters in matrices of the blocks active for one token."""
        return (
            self.num_hidden_matrix + self.num_frozen_block_matrix - (shape.num_parameters - shape.num_active_parameters)
        )

    def num_head(self, shape: ModelShape) -> int:
        """Return the parameters of the head, tied or not."""
        return shape.num_matmul_parameters - self.num_block_matrix(shape)


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Bytes at the peak of a step on one device, by kind; those `freed` at that `moment` are 0.

    `weights` are the optimizer's master weights, `weights_copy` a kept copy in the compute format, `gathered` the whole
    tensors under sharding, `received` a pipeline stage's buffers for its neighbours' messages, `workspace` logits and
    loss, or the temporaries of a block's backward pass, of the last message of gradients or of an optimizer's step,
    `snapshot` the copy for a save in the background, `process` a process on a CPU by itself, `margin` the allocator's.
    """

    weights: int
    weights_copy: int
    gradients: int
    optimizer: int
    gathered: int = 0
    received: int = 0
    activations: int = 0
    workspace: int = 0
    snapshot: int = 0
    process: int = 0
    margin: int = 0
    moment: str = ""
    freed: tuple[str, ...] = ()

    @property
    def static(self) -> int:
        """Add up weights, gradients and optimizer state."""
        return self.weights + self.weights_copy + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """Add all kinds up."""
        held = self.static + self.gathered + self.received + self.snapshot + self.process
        return held + self.activations + self.workspace + self.margin

    def to_json(self) -> dict[str, Any]:
        """Return bytes by kind, and their total."""
        return {kind: size for kind, size in asdict(self).items() if isinstance(size, int)} | {"total": self.total}


def state_bytes(parameters: TrainedParameters, *, precision: PrecisionBytes, optimizer: OptimizerState) -> int:
    """Count the bytes of an optimizer's state over all shards, an average of the weights included."""
    num_table = parameters.num_trained - parameters.num_hidden_matrix - parameters.num_vector
    large = (
        optimizer.per_matrix_value * parameters.num_hidden_matrix
        + optimizer.per_table_value * num_table
        + optimizer.per_edge * parameters.num_edge
    ) * (optimizer.value_bytes or precision.state)
    small = optimizer.per_vector_value * parameters.num_vector * (optimizer.vector_bytes or precision.state)
    averages = optimizer.average_bytes * parameters.num_total
    return math.ceil(large + small + averages + optimizer.bytes_per_long_edge * parameters.num_long_edge)
