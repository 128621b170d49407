"""The memory of a run on one device: what a config decides about it, the bytes at each moment of a step, and the fit.

The bytes of weights, gradients and optimizer state are those of the strategy's real shards; activations come from the
model's facts, the loss's workspace from the loss.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.machine.number_formats import PrecisionBytes, utilization_format
from lmtrain.accounting.model.memory import (
    ALLOCATOR_MARGIN,
    BACKWARD,
    COMPILED_HEAP_SHARE,
    FORWARD,
    HEAP_SHARE,
    LARGEST_KEPT_BYTES,
    SENT,
    SENT_BLOCK,
    STEP,
    TENSORS_OF_A_WORKSPACE,
    WORKSPACE_HEAP_SHARE,
    DeviceMemory,
    HostMemory,
    TrainedParameters,
    state_bytes,
)
from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from lmtrain.accounting.model.optimizer_state import FP32_BYTES, STATE_PIECE_BYTES, OptimizerState
from lmtrain.accounting.options.parts import AttentionFacts, LossFacts, RecomputeFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.stages import Stages

LITTLE_BUBBLE: Final = 0.05  # of a step


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The choices of a config that decide memory and speed, as its options describe them, and its model's facts.

    `host` is the memory of a run on this machine's CPU next to its tensors, None on a GPU. `offloads_state`: optimizer
    state is in host memory between steps. `takes_back`: a step leaves copies to go back to. `masks_documents`:
    attention keeps a mask of all pairs of tokens. `example_rows` of an objective stay together in a micro batch.
    `expert_imbalance` is the work of an expert group's fullest rank over the mean one's.
    A run cuts its layers into stages by their time in contexts of `cut_at_tokens`.
    `share_of_kv_heads` are the heads of keys for a head of queries.
    The frozen `teacher` is whole on each device, in fp32.
    `held_bytes` None: the cluster's devices hold theirs.
    """

    cluster: Cluster
    num_ranks: int
    precision: PrecisionFacts
    state: OptimizerState
    spread: ModelSpread
    recompute: RecomputeFacts = field(default_factory=RecomputeFacts)
    attention: AttentionFacts = field(default_factory=AttentionFacts)
    loss: LossFacts = field(default_factory=LossFacts)
    is_compiled: bool = False
    host: HostMemory | None = None
    offloads_state: bool = False
    takes_back: bool = False
    masks_documents: bool = False
    example_rows: int = 1
    expert_imbalance: float = 1.0
    cut_at_tokens: int = 1
    share_of_kv_heads: float = 1.0
    num_future_tokens: int = 0
    teacher: ModelShape | None = None
    held_bytes: int | None = None
    known_facts: ModelFacts | None = None

    @property
    def facts(self) -> ModelFacts:
        """Return the facts of the model, known by now."""
        assert self.known_facts is not None
        return self.known_facts

    @property
    def teacher_bytes(self) -> int:
        """Return the bytes of the teacher's weights on a device."""
        return FP32_BYTES * self.teacher.num_parameters if self.teacher else 0

    @cached_property
    def gathered_parameters(self) -> TrainedParameters:
        """Return the parameters that a rank ever gathers: of experts shared out, its own."""
        return self.facts.parameters.shared_out(self.spread.expert_ranks)

    @property
    def device_bytes(self) -> int | None:
        """Return the memory of a device, None where it is not known."""
        return self.cluster.device_bytes if self.held_bytes is None else self.held_bytes

    @property
    def keeps_gradients(self) -> bool:
        """Return whether gradients stay in memory between steps."""
        return self.spread.keeps_gradients and (self.num_ranks > 1 or self.spread.reduces_alone)

    @property
    def casts_parameters(self) -> bool:
        """Return whether the weights have the format of the model's products: no copy is kept."""
        return self.spread.casts_parameters or self.precision.casts_parameters

    @property
    def has_wide_stream(self) -> bool:
        """Return whether the residual stream is in fp32 between products in fewer bits."""
        return self.precision.residual is None and not self.casts_parameters and self.bytes_of.activations < FP32_BYTES

    @property
    def cuts_blocks(self) -> bool:
        """Return whether the compiler decides a block's kept activations: under full recomputation it does not."""
        return self.is_compiled and self.recompute.is_cut

    @cached_property
    def bytes_of(self) -> PrecisionBytes:
        """Return the bytes of a value by role; sharding casts gathered values and keeps no copy."""
        held = self.precision.bytes_of
        return replace(held, compute_copy=0) if self.casts_parameters else held

    def gathered_bytes(self, parameters: TrainedParameters, num_values: int) -> int:
        """Return the bytes of all values outside the blocks and of others inside, of which some may be in fp8."""
        outside, value_bytes = parameters.num_outside_blocks, self.bytes_of.activations
        share = (num_values - outside) / max(1, parameters.num_total - outside)
        return num_values * value_bytes - round(share * parameters.num_wide(self.precision.fp8_width)) * (
            value_bytes - 1
        )

    def num_kv_heads(self, layers: Sequence[AttentionShape]) -> int:
        """Return the heads of keys that a context group may divide: 1 of latent attention, divided by none."""
        if any(layer.value_width is not None for layer in layers):
            return 1
        return round(max((layer.num_heads for layer in layers), default=0) * self.share_of_kv_heads)

    def kv_bytes(self, layers: Sequence[AttentionShape], num_tokens: float) -> float:
        """Return the bytes of the keys and values of all layers, both as wide as the wider one."""
        widths = sum(layer.num_heads * max(layer.head_width, layer.value_width or 0) for layer in layers)
        return 2 * widths * self.share_of_kv_heads * self.bytes_of.activations * num_tokens

    def peak(self) -> Peak | None:
        """Return the dense peak of one device for the run's products, of fp8 that of bf16."""
        return self.cluster.peak(utilization_format(self.bytes_of.matmul))

    def num_shards(self, num_ranks: int) -> int:
        """Return the number of devices sharing one copy of the model, or of its part."""
        return self.spread.num_shards(num_ranks) if num_ranks > 1 else 1

    def num_copies(self, num_ranks: int) -> int:
        """Return the number of copies of the model, or of a stage, that take a step together."""
        spread = self.spread
        of_one = self.num_shards(num_ranks) * spread.tensor_ranks * spread.pipeline.num_stages
        return max(1, num_ranks // of_one) if spread.equals_one_process else 1

    def stages(self, shape: ModelShape, parameters: TrainedParameters) -> Stages:
        """Return a model's stages, one of all layers where there is no pipeline."""
        pipeline, tokens = self.spread.pipeline, self.cut_at_tokens
        return Stages(pipeline=pipeline, shape=shape, parameters=parameters, context_tokens=tokens)

    @cached_property
    def own_stages(self) -> Stages:
        """Return the stages of the known model."""
        return self.stages(self.facts.shape, self.facts.parameters)

    def stream_bytes(self, batch: BatchPlan, shape: ModelShape) -> float:
        """Return the bytes of a micro-batch that one stage of a pipeline sends to the next."""
        value_bytes = FP32_BYTES if self.has_wide_stream else self.bytes_of.activations
        tokens = batch.micro_batch_tokens / (self.spread.tensor_ranks * self.spread.context_ranks)
        penalty = FP32_BYTES if shape.num_active_parameters < shape.num_parameters else 0
        return tokens * shape.width * value_bytes * shape.num_streams + penalty

    def uneven_bytes(self, batch: BatchPlan) -> float:
        """Return the activations of an expert group's fullest rank beyond the mean one's: of its experts' rows."""
        shape, num_layers = self.facts.shape, max(1, len(self.facts.shape.attention))
        num_kept = max(1, round(num_layers * (1 - self.recompute.share)))
        # A tensor group divides the width within experts alone.
        at_ends, within = (
            2 * shape.width * self.spread.tensor_ranks,
            self.facts.parameters.num_active_stacked(shape) / max(1, shape.width),
        )
        if self.recompute.recomputes and not self.recompute.share:  # keeps products alone: two of three, no input
            at_ends, within = at_ends / 2, within * 2 / 3
        of_token = (at_ends * shape.num_chosen_experts + within) * self.bytes_of.activations
        return (self.expert_imbalance - 1) * batch.micro_batch_tokens * of_token * num_kept / num_layers

    def in_group(self, alone: float, *, num_tokens: float) -> int:
        """Return the activations of a rank of a tensor or context group, with `alone` for a single rank.

        Products of a layer keep their inputs gathered, and experts their outputs too; recomputed layers gather them
        again, one at a time. A context group keeps the gathered keys and values of heads that it does not divide.
        """
        ranks, slices = self.spread.tensor_ranks, self.spread.context_ranks
        shape, num_layers = self.facts.shape, len(self.facts.shape.attention)
        kept = max(1, round(num_layers * (1 - self.recompute.share)))
        if self.num_kv_heads(shape.attention) % (slices * ranks):
            alone += self.kv_bytes(shape.attention, num_tokens) * kept / max(1, num_layers) * (slices - 1) / slices
        gathered = shape.width * self.bytes_of.activations * shape.layer_vectors * kept * num_tokens / slices
        return int(round(alone) + (ranks - 1) * gathered) // ranks


def memory_of(setting: Setting, batch: BatchPlan) -> DeviceMemory:
    """Return the fullest moment of a step on one device, the fullest stage of a pipeline, by kind."""
    stages = range(setting.spread.pipeline.num_stages)
    peak = max((_at_peak(moments_of(setting, batch, stage=stage)) for stage in stages), key=lambda memory: memory.total)
    if setting.host is None:
        return replace(peak, margin=math.ceil(peak.total * ALLOCATOR_MARGIN))
    held = moments_of(setting, batch)[0]
    return replace(peak, **_on_host(held, setting.host, is_compiled=setting.is_compiled))


def moments_of(setting: Setting, batch: BatchPlan, *, stage: int = 0) -> tuple[DeviceMemory, ...]:
    """Return the bytes of a device at the moments of a step that can be its fullest.

    The forward pass ends next to gradients of micro-batches before it; the backward pass next to its own. Then FSDP
    sends the gradients of all parameters outside the blocks together, from a copy in fp32 next to them, as it sent each
    block's. Neither there nor at the step anything is gathered.
    """
    held = _held(setting, batch, stage)
    forward = replace(held, gradients=_between(setting, batch, held), moment=FORWARD)
    parameters, formats = setting.gathered_parameters, setting.bytes_of
    sequences = batch.sequences_per_micro_step / setting.spread.context_ranks
    layers = len(setting.facts.shape.attention) or math.inf  # without blocks none keeps anything
    tokens, group = batch.micro_batch_tokens, setting.spread.tensor_ranks
    alone = setting.facts.activations.of(sequences)
    last = replace(
        held,
        activations=setting.in_group(alone / layers, num_tokens=int(tokens / layers)),
        workspace=setting.facts.block_workspace_bytes(sequences) // group,
    )
    empty = replace(held, gathered=0, activations=0, workspace=0)
    is_sent = setting.num_shards(batch.num_ranks) * group > 1
    of_value = (formats.activations + FP32_BYTES) // group if is_sent else 0
    whole = setting.gathered_bytes(parameters, parameters.num_outside_blocks + parameters.num_largest_block) // group
    sent_block = parameters.num_largest_block * of_value
    return (
        forward,
        replace(empty, workspace=_update(setting, batch, held, stage), moment=STEP),  # named where others are as full
        replace(last, moment=BACKWARD),
        replace(empty, gathered=whole * is_sent, workspace=sent_block, moment=SENT_BLOCK),
        replace(empty, workspace=parameters.num_outside_blocks * of_value, moment=SENT),
    )


def _held(setting: Setting, batch: BatchPlan, stage: int) -> DeviceMemory:
    """Return the bytes at the end of the forward pass, with all gradients."""
    facts, formats, spread = setting.facts, setting.bytes_of, setting.spread
    parameters, group = facts.parameters, spread.tensor_ranks
    held = math.ceil(_of_a_rank(setting, batch, stage))
    trained = math.ceil(held * parameters.num_trained / max(1, parameters.num_total))
    state = state_bytes(parameters, precision=formats, optimizer=setting.state)
    averages = setting.state.average_bytes * parameters.num_total
    state = _state_share(setting, batch) * (state - averages) + averages
    sequences, micro = batch.sequences_per_micro_step / spread.context_ranks, batch.accumulation_micro_steps
    kept = facts.activations.of(sequences) * spread.pipeline.kept_share(micro, stage=stage)
    kept *= setting.own_stages.share_of_layers(stage) * spread.pipeline.num_stages
    kept += setting.uneven_bytes(batch)
    received = micro * spread.pipeline.num_received(stage=stage) * setting.stream_bytes(batch, facts.shape)
    return DeviceMemory(
        weights=held * formats.weights + setting.teacher_bytes,
        weights_copy=held * formats.compute_copy,
        gradients=trained * formats.gradients,
        optimizer=math.ceil(state * held / max(1, parameters.num_total)),
        gathered=_gathered(setting, batch),
        received=round(received),
        activations=setting.in_group(kept, num_tokens=batch.micro_batch_tokens),
        workspace=max(loss_workspace(setting, batch), facts.block_workspace_bytes(sequences) // group),
    )


def loss_workspace(setting: Setting, batch: BatchPlan) -> int:
    """Return the bytes of the loss next to all activations, on a rank with its part of tokens and vocabulary."""
    facts, value_bytes = setting.facts, setting.bytes_of.activations
    width = max(1, facts.shape.width)
    return setting.loss.workspace(
        num_tokens=batch.micro_batch_tokens / setting.spread.context_ranks,
        vocab_size=facts.num_head / width / setting.spread.tensor_ranks,
        width=width,
        value_bytes=value_bytes,
        stream_bytes=FP32_BYTES if setting.has_wide_stream else value_bytes,
        is_compiled=setting.is_compiled,
    )


def _of_a_rank(setting: Setting, batch: BatchPlan, stage: int) -> float:
    """Return the parameters of the fullest rank, or its share of a stage of a pipeline."""
    num_shards, tensor_ranks = setting.num_shards(batch.num_ranks), setting.spread.tensor_ranks
    held = setting.facts.parameters.held(num_shards=num_shards, tensor_ranks=tensor_ranks)
    # Learned positions stay whole in a tensor group.
    positions = setting.facts.components.get("position_embedding", 0)
    held += (positions - positions // tensor_ranks) // num_shards
    return held * setting.own_stages.share_of_parameters(stage)


def _gathered(setting: Setting, batch: BatchPlan) -> int:
    """Return the whole weights under sharding: of the block at work and of the next one, or of all."""
    parameters, group = setting.gathered_parameters, setting.spread.tensor_ranks
    if setting.num_shards(batch.num_ranks) * group == 1:
        return 0
    two = parameters.num_outside_blocks + 2 * parameters.num_largest_block
    of_stage = parameters.num_total // setting.spread.pipeline.num_stages
    num_whole = two if setting.spread.reshard_after_forward else of_stage
    return setting.gathered_bytes(parameters, num_whole) // group


def _between(setting: Setting, batch: BatchPlan, held: DeviceMemory) -> int:
    """Return the gradients in memory between two micro-batches: whole ones where shards are sent once a step."""
    spread, accumulates = setting.spread, batch.accumulation_micro_steps > 1
    keeps_whole = spread.shards_over is not None and not spread.reduces_every_micro_step
    if keeps_whole and accumulates and setting.num_shards(batch.num_ranks) > 1:
        num_parts = spread.tensor_ranks * spread.pipeline.num_stages
        return -(-setting.gathered_parameters.num_trained // num_parts) * FP32_BYTES
    return held.gradients if setting.keeps_gradients or accumulates else 0


def _update(setting: Setting, batch: BatchPlan, held: DeviceMemory, stage: int) -> int:
    """Return the temporaries of the optimizer's step, and the copies to go back to."""
    parameters, state, spread = setting.facts.parameters, setting.state, setting.spread
    share = _of_a_rank(setting, batch, stage) / max(1, parameters.num_total)
    shards, group = setting.num_shards(batch.num_ranks), spread.tensor_ranks
    hidden = parameters.num_hidden_matrix * share * shards * group
    update = state.step_bytes * hidden / (shards * group)
    if work := state.matrix_work:
        ranks = {"num_shards": shards, "tensor_ranks": group, "num_copies": setting.num_copies(batch.num_ranks)}
        update += work.num_bytes(hidden, num_largest=parameters.num_largest_matrix, **ranks)
    of_state = _state_share(setting, batch)
    averages = state.average_bytes * parameters.num_total * share
    trained = parameters.num_trained / max(1, parameters.num_total)
    undone = held.weights * trained + (held.optimizer - averages) * (of_state == 1.0)
    return math.ceil(of_state * update + undone * setting.takes_back)


def _state_share(setting: Setting, batch: BatchPlan) -> float:
    """Return the share of a device's optimizer state on it at once: a piece, or that of its largest tensor."""
    if not setting.offloads_state:
        return 1.0
    parameters, shape = setting.facts.parameters, setting.facts.shape
    table = max(shape.num_embedding_parameters, parameters.num_outside_blocks - shape.num_embedding_parameters)
    num_devices = setting.num_shards(batch.num_ranks) * setting.spread.tensor_ranks
    piece = max(table / num_devices, STATE_PIECE_BYTES / setting.bytes_of.weights)
    return min(1.0, piece * num_devices / max(1, parameters.num_trained))


def _at_peak(moments: tuple[DeviceMemory, ...]) -> DeviceMemory:
    """Return the fullest moment, the first of equals, with the kinds that are freed at it."""
    peak = max(moments, key=lambda moment: moment.total)
    kinds = [kind for kind, size in peak.to_json().items() if not size]
    return replace(peak, freed=tuple(kind for kind in kinds if any(getattr(one, kind) for one in moments)))


def _on_host(held: DeviceMemory, host: HostMemory, *, is_compiled: bool) -> dict[str, int]:
    """Return a CPU's further bytes: a copy for the save, the process and the holes left in its heap by a step."""
    saved, least = held.weights + held.optimizer, host.snapshot_from_bytes
    is_mapped = held.workspace >= TENSORS_OF_A_WORKSPACE * LARGEST_KEPT_BYTES
    of_workspace = COMPILED_HEAP_SHARE if is_compiled else WORKSPACE_HEAP_SHARE
    holes = 0.0 if is_mapped else held.workspace * of_workspace
    return {
        "snapshot": saved if least is not None and saved >= least else 0,
        "process": host.process_bytes,
        "margin": math.ceil(held.activations * (COMPILED_HEAP_SHARE if is_compiled else HEAP_SHARE) + holes),
    }


def largest_micro_batch(setting: Setting, batch: BatchPlan) -> BatchPlan | None:
    """Return the batch of the same tokens per step with the largest fitting micro batch, or None without one.

    In a pipeline it is the largest with little waiting for other stages, or else the smallest.
    """
    pipeline, found = setting.spread.pipeline, None
    for sequences in batch.micro_batches(example_rows=setting.example_rows):
        tried = with_micro_batch(batch, sequences)
        if pipeline.lays_out(tried.accumulation_micro_steps) and fits(setting, tried):
            found = tried
            if pipeline.bubble_share(tried.accumulation_micro_steps) <= LITTLE_BUBBLE:
                break
    return found


def with_micro_batch(batch: BatchPlan, sequences: int) -> BatchPlan:
    """Return the batch of the same tokens per step, this number of sequences at a time."""
    micro_steps = batch.sequences_per_rank // sequences
    return replace(batch, sequences_per_micro_step=sequences, accumulation_micro_steps=micro_steps)


def fits(setting: Setting, batch: BatchPlan) -> bool:
    """Return whether the peak of a step is within the device's memory; an unknown memory fits all."""
    return setting.device_bytes is None or memory_of(setting, batch).total <= setting.device_bytes
