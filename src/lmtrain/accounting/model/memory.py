"""Memory of training on one device, by kind, at the fullest moment of a step; and the stages of a pipeline.

Activations are an argument, measured on the real graph elsewhere. Pipeline: arXiv 2104.04473 section 2.2, with layers
spread evenly over stages.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.model.optimizer_state import FP32_BYTES, OptimizerState
from lmtrain.errors import ConfigurationError

Schedule = Literal["gpipe", "1f1b"]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Neighbouring ranks with a stage of the layers each; a single stage is the plain case.

    `num_chunks` are the parts of a rank's layers, with a micro-batch's visits to the others in between (interleaved
    1F1B).
    GPipe makes every forward pass of a step before its first backward pass.

    Raises:
        ConfigurationError: Another schedule, no chunk, or chunks of GPipe.
    """

    num_stages: int = 1
    num_chunks: int = 1
    schedule: Schedule = "1f1b"

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Schedule):
            valid = " or ".join(get_args(Schedule))
            raise ConfigurationError(f"strategy.schedule={self.schedule} is not known; valid: {valid}.")
        if self.num_chunks < 1 or (self._fills_first and self.num_chunks > 1):
            raise ConfigurationError(
                f"strategy.num_chunks={self.num_chunks} is below 1, or of a schedule without chunks "
                f"(strategy.schedule={self.schedule}). Did you mean 1?"
            )

    @property
    def _fills_first(self) -> bool:
        return self.schedule == "gpipe"

    def require_layers(self, num_layers: int) -> None:
        """Refuse more parts than layers.

        Raises:
            ConfigurationError: With the nearest number.
        """
        most = max(1, num_layers // self.num_chunks)
        if self.num_stages > 1 and self.num_stages * self.num_chunks > num_layers:
            raise ConfigurationError(
                f"strategy.num_stages={self.num_stages} x strategy.num_chunks={self.num_chunks} are more parts than "
                f"the model's {num_layers} layers. Did you mean strategy.num_stages={most}?"
            )

    def bubble_share(self, num_micro_steps: int) -> float:
        """Return a stage's share of waiting in a step: (P - 1) / (m v + P - 1)."""
        waits = self.num_stages - 1
        return waits / (num_micro_steps * self.num_chunks + waits)

    def kept_share(self, num_micro_steps: int, *, stage: int = 0) -> float:
        """Return a stage's activations at most, counted from 0, in those of one micro-batch of the whole model."""
        stages, chunks, later = self.num_stages, self.num_chunks, self.num_stages - 1 - stage
        in_flight = stages + (2 * later + 1 - stages) / chunks if chunks > 1 else later + 1
        return (num_micro_steps if self._fills_first else min(in_flight, num_micro_steps)) / stages

    def held_share(self, *, num_total: int, num_outside_blocks: int, num_at_end: int) -> float:
        """Return the share of parameters of a stage with `num_at_end` of those outside the blocks."""
        if self.num_stages == 1:
            return 1.0
        return ((num_total - num_outside_blocks) / self.num_stages + num_at_end) / num_total


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
STEP: Final = "the optimizer's step"
TENSORS_OF_A_WORKSPACE: Final = 3  # logits, their gradient, and log-probabilities


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Memory of training on a CPU next to its tensors.

    `heap_share` and `workspace_heap_share` are the heap's excess over activations and over workspace, as shares.
    Weights and optimizer state of `snapshot_from_bytes` or more are copied for a save in the background; None copies
    nothing.
    """

    process_bytes: int = PROCESS_BYTES
    heap_share: float = HEAP_SHARE
    workspace_heap_share: float = WORKSPACE_HEAP_SHARE
    snapshot_from_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainedParameters:
    """Parameters as optimizer and sharding see them; `num_largest_block` is gathered at once by FSDP.

    `num_hidden_matrix` are those in matrices of the layers, updated by Muon; `num_outside_blocks` are embeddings,
    head and last norm, gathered together for the whole of a step. `num_vector` are norms, biases and scalars, the only
    ones kept in full by optimizers with factored or coarse state; `num_edge` counts the rows and columns of all
    other tensors, `num_long_edge` the longer of both for hidden matrices, the axis of optimizers' single values.
    `num_frozen` have neither gradients nor state;
    `num_frozen_block_matrix` of them are in matrices of the blocks. `num_largest_matrix` are those of the largest
    tensor of hidden matrices.
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

    @property
    def num_trained(self) -> int:
        """Return those with a gradient."""
        return self.num_total - self.num_frozen

    def num_block_matrix(self, shape: ModelShape) -> int:
        """Return the parameters in matrices of the blocks active for one token."""
        return (
            self.num_hidden_matrix + self.num_frozen_block_matrix - (shape.num_parameters - shape.num_active_parameters)
        )


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Bytes at the peak of a step on one device, by kind; those `freed` at that `moment` are 0.

    `weights` are the optimizer's master weights, `weights_copy` a kept copy in the compute format, `gathered` the whole
    tensors under sharding, `workspace` logits and loss, or the temporaries of a block's backward pass, of the last
    message of gradients or of an optimizer's step, `snapshot` the copy for a save in the background, `process` a
    process on a CPU by itself, `margin` the allocator's.
    """

    weights: int
    weights_copy: int
    gradients: int
    optimizer: int
    gathered: int = 0
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
        held = self.static + self.gathered + self.snapshot + self.process
        return held + self.activations + self.workspace + self.margin

    def to_json(self) -> dict[str, Any]:
        """Return bytes by kind, and their total."""
        return {kind: size for kind, size in asdict(self).items() if isinstance(size, int)} | {"total": self.total}


def device_memory(
    parameters: TrainedParameters,
    *,
    precision: PrecisionBytes,
    optimizer: OptimizerState,
    num_shards: int = 1,
    num_copies: int = 1,
    keeps_gradients: bool = True,
    keeps_whole_gradients: bool = False,
    tensor_ranks: int = 1,
    pipeline: Pipeline = ONE_STAGE,
    num_at_end: int | None = None,
    num_gathered_blocks: int | None = 2,
    activations: int = 0,
    block_activations: int = 0,
    workspace: int = 0,
    block_workspace: int = 0,
    allocator_margin: float = ALLOCATOR_MARGIN,
    host: HostMemory | None = None,
    takes_back: bool = False,
    state_share: float = 1.0,
) -> DeviceMemory:
    """Count the bytes of one device, with weights, gradients and state sharded over `num_shards`, rounded up.

    Each shard is of a rank's part, where `tensor_ranks` compute together, and `num_copies` of all are updated alike.
    `keeps_gradients`: they are there in the forward pass, of micro-batches before it. `keeps_whole_gradients` in fp32,
    in place of those of the shards. `takes_back`: weights and state are copied for the time of a step.
    A stage of a `pipeline` holds `num_at_end` of the parameters outside the blocks, None: all.

    `workspace` is needed next to all activations, `block_workspace` by the last backward pass of a block next to its
    own `block_activations`. `num_gathered_blocks` are whole at once under sharding: the computing one and the next one
    on its way; None is all blocks, kept from the forward pass to the backward pass. `host` is the rest on a CPU; None
    is a GPU, with `allocator_margin` of everything in its allocator. `state_share` of the optimizer's state is on the
    device at once, of averages all.
    """
    num_devices = num_shards * tensor_ranks
    outside = parameters.num_outside_blocks
    at_end = outside if num_at_end is None else num_at_end
    share = pipeline.held_share(num_total=parameters.num_total, num_outside_blocks=outside, num_at_end=at_end)
    held = _share(math.ceil(parameters.num_total * share), num_devices)
    trained = _share(math.ceil(parameters.num_trained * share), num_devices)
    whole = _share(parameters.num_trained, tensor_ranks) * FP32_BYTES if keeps_whole_gradients and num_shards > 1 else 0
    state = state_bytes(parameters, precision=precision, optimizer=optimizer)
    averages = optimizer.average_bytes * parameters.num_total
    undone = trained * precision.weights + (state - averages) * share / num_devices * (state_share == 1.0)
    state = state_share * (state - averages) + averages
    by_kind = DeviceMemory(
        weights=held * precision.weights,
        weights_copy=held * precision.compute_copy,
        gradients=trained * precision.gradients,
        optimizer=math.ceil(state * share / num_devices),
        gathered=_gathered(parameters, precision, num_gathered_blocks) // tensor_ranks if num_devices > 1 else 0,
        activations=activations,
        workspace=workspace,
    )
    hidden = parameters.num_hidden_matrix * share
    update = optimizer.step_bytes * hidden / num_devices
    if work := optimizer.matrix_work:
        ranks = {"num_shards": num_shards, "tensor_ranks": tensor_ranks, "num_copies": num_copies}
        update += work.num_bytes(hidden, num_largest=parameters.num_largest_matrix, **ranks)
    between = whole or (by_kind.gradients if keeps_gradients else 0)
    last = replace(by_kind, activations=block_activations, workspace=block_workspace)
    sent = outside * (precision.activations + FP32_BYTES) // tensor_ranks if num_devices > 1 else 0
    update = math.ceil(state_share * update + undone * takes_back)
    peak = _at_peak(replace(by_kind, gradients=between), last, sent=sent, update=update)
    if host is not None:
        return replace(peak, **_on_host(by_kind, host))
    return replace(peak, margin=math.ceil(peak.total * allocator_margin))


def _at_peak(forward: DeviceMemory, last: DeviceMemory, *, sent: int, update: int) -> DeviceMemory:
    """Return the fullest of four moments: the ends of both passes, the gradients `sent` after them, and the step.

    Between the first two gradients grow while activations go. FSDP2 sends the gradients of all parameters outside the
    blocks together, from a copy in fp32 next to them. Neither there nor at the step anything is gathered.
    """
    empty = replace(last, gathered=0, activations=0)
    moments = (
        replace(forward, moment=FORWARD),
        replace(empty, workspace=update, moment=STEP),  # the one to name where it is as full as the next two
        replace(last, moment=BACKWARD),
        replace(empty, workspace=sent, moment=SENT),
    )
    peak = max(moments, key=lambda moment: moment.total)
    kinds = [kind for kind, size in peak.to_json().items() if not size]
    return replace(peak, freed=tuple(kind for kind in kinds if any(getattr(one, kind) for one in moments)))


def _on_host(held: DeviceMemory, host: HostMemory) -> dict[str, int]:
    """Return a CPU's further bytes: a copy for the save, the process and the holes left in its heap by a step."""
    saved, least = held.weights + held.optimizer, host.snapshot_from_bytes
    is_mapped = held.workspace >= TENSORS_OF_A_WORKSPACE * LARGEST_KEPT_BYTES
    holes = 0.0 if is_mapped else held.workspace * host.workspace_heap_share
    return {
        "snapshot": saved if least is not None and saved >= least else 0,
        "process": host.process_bytes,
        "margin": math.ceil(held.activations * host.heap_share + holes),
    }


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


def _gathered(parameters: TrainedParameters, precision: PrecisionBytes, num_blocks: int | None) -> int:
    some = parameters.num_outside_blocks + (num_blocks or 0) * parameters.num_largest_block
    return (parameters.num_total if num_blocks is None else some) * precision.activations


def _share(num_values: int, num_shards: int) -> int:
    return -(-num_values // num_shards)
