"""The fit into a device: the memory of a run as set, and the largest micro batch."""

import math
from dataclasses import dataclass, replace

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.model.memory import ONE_STAGE, DeviceMemory, HostMemory, Pipeline, device_memory
from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.model.optimizer_state import STATE_PIECE_BYTES, OptimizerState


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Ranks in joint products, with 1 / `num_ranks` of the memory of a rank alone.

    But products of a layer keep their inputs gathered: `input_bytes` of a token each, `num_inputs` of them.
    """

    num_ranks: int = 1
    input_bytes: int = 0
    num_inputs: int = 0

    def activations(self, alone: int, *, num_tokens: int) -> int:
        """Return the bytes of a rank for `num_tokens`, with `alone` for a single rank."""
        gathered = self.input_bytes * self.num_inputs * num_tokens
        return (alone + (self.num_ranks - 1) * gathered) // self.num_ranks


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All inputs of a device's memory but the batch; `is_sharded` spreads the model.

    Its parts are as many as ranks, and no more than `most_shards`, None for no such end. `keeps_gradients` in memory
    between steps; else they are there from one micro-batch of a step to its next. `keeps_whole_gradients` of a rank's
    part, in fp32, between the micro-batches of a step in place of the shards' own. `keeps_gathered_blocks` from the
    forward to the backward pass. `host` is the memory of a CPU next to the tensors; None is a GPU. `offloads_state`:
    optimizer state is in host memory between steps, and comes in pieces. `takes_back`: a step leaves copies to go back
    to. `steps_together`: copies of the model take the same step, and may share its work. `slices` ranks share
    each sequence. `example_rows` are together in a micro batch.
    """

    facts: ModelFacts
    precision: PrecisionBytes
    optimizer: OptimizerState
    is_sharded: bool
    device_bytes: int | None
    most_shards: int | None = None
    keeps_gradients: bool = False
    keeps_whole_gradients: bool = False
    keeps_gathered_blocks: bool = False
    tensor: TensorGroup = TensorGroup()
    slices: int = 1
    pipeline: Pipeline = ONE_STAGE
    host: HostMemory | None = None
    offloads_state: bool = False
    takes_back: bool = False
    steps_together: bool = True
    example_rows: int = 1

    def num_shards(self, num_ranks: int) -> int:
        """Return the number of devices sharing one copy of the model, or of its part."""
        num_parts = num_ranks // self.tensor.num_ranks
        return min(num_parts, self.most_shards or num_parts) if self.is_sharded else 1

    def num_copies(self, num_ranks: int) -> int:
        """Return the number of copies of the model, or of a stage, that take a step together."""
        of_one = self.num_shards(num_ranks) * self.tensor.num_ranks * self.pipeline.num_stages
        return max(1, num_ranks // of_one) if self.steps_together else 1


def memory_of(setting: Setting, batch: BatchPlan) -> DeviceMemory:
    """Return the peak of a step on one device, the fullest of a pipeline, by kind.

    The first stage has the embedding and the most micro-batches under way, the last one the head. The workspace of the
    loss is counted on both.
    """
    last = setting.pipeline.num_stages - 1
    ends = [_of_stage(setting, batch, stage) for stage in dict.fromkeys((0, last))]
    return max(ends, key=lambda memory: memory.total)


def num_at_end(facts: ModelFacts, *, is_first: bool) -> int:
    """Return the parameters outside the blocks of a pipeline's first or last stage; a tied table is on both."""
    embedding, outside = facts.shape.num_embedding_parameters, facts.parameters.num_outside_blocks
    if is_first:
        return embedding
    head = facts.shape.num_matmul_parameters - facts.parameters.num_block_matrix(facts.shape)
    is_tied = outside - embedding < head
    return outside - embedding + (head if is_tied else 0)


def _of_stage(setting: Setting, batch: BatchPlan, stage: int) -> DeviceMemory:
    sequences = batch.sequences_per_micro_step / setting.slices
    alone = setting.facts.activations.of(sequences)
    num_blocks = len(setting.facts.shape.attention) or math.inf  # without blocks none keeps anything
    num_tokens = batch.micro_batch_tokens
    accumulates = batch.accumulation_micro_steps > 1
    kept = alone * setting.pipeline.kept_share(batch.accumulation_micro_steps, stage=stage)
    return device_memory(
        setting.facts.parameters,
        precision=setting.precision,
        optimizer=setting.optimizer,
        num_shards=setting.num_shards(batch.num_ranks),
        num_copies=setting.num_copies(batch.num_ranks),
        keeps_gradients=setting.keeps_gradients or accumulates,
        keeps_whole_gradients=setting.keeps_whole_gradients and accumulates,
        tensor_ranks=setting.tensor.num_ranks,
        pipeline=setting.pipeline,
        num_at_end=num_at_end(setting.facts, is_first=stage == 0),
        num_gathered_blocks=None if setting.keeps_gathered_blocks else 2,
        activations=setting.tensor.activations(round(kept), num_tokens=num_tokens),
        block_activations=setting.tensor.activations(
            round(alone / num_blocks), num_tokens=int(num_tokens / num_blocks)
        ),
        block_workspace=setting.facts.block_workspace_bytes(sequences) // setting.tensor.num_ranks,
        workspace=setting.facts.workspace_bytes(sequences) // setting.tensor.num_ranks,
        host=setting.host,
        takes_back=setting.takes_back,
        state_share=_state_share(setting, batch) if setting.offloads_state else 1.0,
    )


def _state_share(setting: Setting, batch: BatchPlan) -> float:
    """Return the share of a device's optimizer state on it at once: a piece, or that of its largest tensor."""
    parameters, shape = setting.facts.parameters, setting.facts.shape
    table = max(shape.num_embedding_parameters, parameters.num_outside_blocks - shape.num_embedding_parameters)
    num_devices = setting.num_shards(batch.num_ranks) * setting.tensor.num_ranks
    piece = max(table / num_devices, STATE_PIECE_BYTES / setting.precision.weights)
    return min(1.0, piece * num_devices / max(1, parameters.num_trained))


def largest_micro_batch(setting: Setting, batch: BatchPlan) -> BatchPlan | None:
    """Return the batch of the same tokens per step with the largest fitting micro batch, or None without one."""
    for sequences in batch.micro_batches(example_rows=setting.example_rows):
        micro_steps = batch.sequences_per_rank // sequences
        tried = replace(batch, sequences_per_micro_step=sequences, accumulation_micro_steps=micro_steps)
        if fits(setting, tried):
            return tried
    return None


def fits(setting: Setting, batch: BatchPlan) -> bool:
    """Return whether the peak of a step is within the device's memory; an unknown memory fits all."""
    return setting.device_bytes is None or memory_of(setting, batch).total <= setting.device_bytes
