"""A composed config's choices for planning: devices, formats, sharding. Loads nothing heavy."""

from dataclasses import dataclass, replace
from typing import Any, Final

from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.machine.number_formats import PrecisionBytes, utilization_format
from lmtrain.accounting.model.memory import (
    COMPILED_HEAP_SHARE,
    COMPILER_BYTES,
    HEAP_SHARE,
    PROCESS_BYTES,
    WORKSPACE_HEAP_SHARE,
    HostMemory,
)
from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.model.optimizer_state import OptimizerState
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.parts import AttentionFacts, AverageFacts, RecomputeFacts, SpikeFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.fit import Setting, TensorGroup
from lmtrain.errors import ConfigurationError
from lmtrain.precision.cpu_features import bf16_flags
from lmtrain.run.planning.calibration import kind_here, measurements_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.check import TARGET
from lmtrain.run.schema.facts import facts_of, require_facts
from lmtrain.run.schema.node import Node
from lmtrain.run.validators.callbacks import callback_facts
from lmtrain.run.validators.optimizer import require_float8_head, require_offload, require_rounding
from lmtrain.run.validators.parallelism import require_parts, require_ranks, require_recordable, require_workers
from lmtrain.run.validators.task import example_rows, objective_facts, require_adaptable, require_whole_sequences

INPUTS_OF_A_LAYER: Final = 2  # of attention and of the feed-forward


@dataclass(frozen=True, kw_only=True)
class PlannedSetting:
    """The config's choices that decide memory and speed, as its options describe them.

    `host` is the memory of a run on this machine's CPU next to its tensors, None on a GPU. `offloads_state`: optimizer
    state is in host memory between steps. `records_steps`: in CUDA graphs, so gradients stay where they are.
    `takes_back`: a step leaves copies to go back to. `masks_documents`: attention keeps a mask of all pairs of tokens.
    `example_rows` of an objective stay together in a micro batch.
    """

    cluster: Cluster
    num_ranks: int
    precision: PrecisionFacts
    state: OptimizerState
    spread: ModelSpread
    recompute: RecomputeFacts
    attention: AttentionFacts
    is_compiled: bool
    host: HostMemory | None = None
    offloads_state: bool = False
    records_steps: bool = False
    takes_back: bool = False
    masks_documents: bool = False
    example_rows: int = 1

    @property
    def keeps_gradients(self) -> bool:
        """Return whether gradients stay in memory between steps."""
        return self.records_steps or (self.spread.keeps_gradients and self.spread.reduces_over(self.num_ranks))

    @property
    def casts_parameters(self) -> bool:
        """Return whether the weights have the format of the model's products: no copy is kept."""
        return self.spread.casts_parameters or self.precision.casts_parameters

    @property
    def cuts_blocks(self) -> bool:
        """Return whether the compiler decides a block's kept activations: under full recomputation it does not."""
        return self.is_compiled and self.recompute.is_cut

    @property
    def bytes_of(self) -> PrecisionBytes:
        """Return the bytes of a value by role; sharding casts gathered values and keeps no copy."""
        held = self.precision.bytes_of
        return replace(held, compute_copy=0) if self.casts_parameters else held

    def peak(self) -> Peak | None:
        """Return the dense peak of one device for the run's products, of fp8 that of bf16."""
        return self.cluster.peak(utilization_format(self.bytes_of.matmul))

    @property
    def speed_line(self) -> str | None:
        """Return a note for products faster than the format of the peak; None where they are of that format."""
        products, counted = self.bytes_of.matmul, utilization_format(self.bytes_of.matmul)
        if products == counted:
            return None
        return f"time: {products} at the MFU of {counted}; cluster.mfu states a faster step"


def planned_setting(config: RunConfig) -> PlannedSetting:
    """Read the choices of a composed config.

    Raises:
        ConfigurationError: An impossible choice, or one unknown to planning.
    """
    require_float8_head(config)
    require_rounding(config)
    require_parts(config)
    require_workers(config)
    require_adaptable(config)
    require_ranks(config)
    require_whole_sequences(config)
    require_recordable(config, num_ranks=config.num_ranks, device="cuda")  # a plan may be of another machine
    on_gpu, allowed = config.cluster.device is not None, config.allowed
    compiles = config.compilation
    place: dict[str, Any] = {"on_gpu": on_gpu, "is_compiled": compiles.compiles}
    spread = require_facts(config.strategy.values, ModelSpread, allowed=allowed)
    host = _host(config, is_compiled=compiles.compiles)
    require_offload(config, on_cpu=host is not None)
    attention = facts_of(config.attention.values, AttentionFacts, allowed=allowed, **place) or AttentionFacts()
    return PlannedSetting(
        cluster=config.cluster,
        num_ranks=config.num_ranks,
        precision=(precision := _precision(config, on_gpu=on_gpu)),
        state=_state(config, precision.bytes_of),
        spread=spread,
        recompute=facts_of(config.recompute.values, RecomputeFacts, allowed=allowed) or RecomputeFacts(),
        attention=attention,
        is_compiled=compiles.compiles,
        host=host,
        offloads_state=config.optimizer_cpu_offload,
        records_steps=config.compile.get("cuda_graphs", False),
        takes_back=(facts_of(config.spikes.values, SpikeFacts, allowed=allowed) or SpikeFacts()).takes_back,
        masks_documents=_masks_documents(config, attention),
        example_rows=example_rows(config),
    )


def _host(config: RunConfig, *, is_compiled: bool) -> HostMemory | None:
    if config.cluster.device is not None or kind_here(config, measurements_of(config)) != "cpu":
        return None
    snapshots = (facts.snapshot_from_bytes for facts in callback_facts(config))
    return HostMemory(
        process_bytes=PROCESS_BYTES + (COMPILER_BYTES if is_compiled else 0),
        heap_share=COMPILED_HEAP_SHARE if is_compiled else HEAP_SHARE,
        workspace_heap_share=COMPILED_HEAP_SHARE if is_compiled else WORKSPACE_HEAP_SHARE,
        snapshot_from_bytes=min((size for size in snapshots if size is not None), default=None),
    )


def _state(config: RunConfig, held: PrecisionBytes) -> OptimizerState:
    """Return the values kept for each parameter: by optimizer, average, strategy, and an objective's starting model."""
    state = require_facts(config.optimizer.values, OptimizerFacts, allowed=config.allowed).state
    average = facts_of(config.weight_average.values, AverageFacts, allowed=config.allowed) or AverageFacts()
    objective = objective_facts(config)
    start = held.weights + held.compute_copy if objective and objective.keeps_start else 0
    return replace(state, average_bytes=average.num_bytes + config.spread.kept_bytes + start)


def _masks_documents(config: RunConfig, attention: AttentionFacts) -> bool:
    """Return whether each layer keeps a mask of the documents in its rows."""
    beyond = attention.masks_beyond
    return config.packing.get("document_mask") is True and beyond is not None and config.batch.context_tokens > beyond


def _precision(config: RunConfig, *, on_gpu: bool) -> PrecisionFacts:
    """Return the formats, chosen for those devices where the precision chooses."""
    place = {"has_bf16": on_gpu or bool(bf16_flags())}
    found = require_facts(config.precision.values, PrecisionFacts, allowed=config.allowed, **place)
    if found.residual not in (None, "bf16"):
        raise ConfigurationError(f"precision.residual must be bf16 or null, got {found.residual}.")
    return found


def attention_of(config: RunConfig, setting: PlannedSetting) -> Node:
    """Return the attention to measure with: one with equal memory, where the run's own runs elsewhere."""
    target = setting.attention.measured_as
    return config.attention if target is None else Node("attention", {TARGET: target})


def fit_setting(setting: PlannedSetting, facts: ModelFacts) -> Setting:
    """Return the inputs of the memory of a device, from a config's choices and its model's facts.

    Raises:
        ConfigurationError: A pipeline has more parts than the model has layers.
    """
    spread, num_layers = setting.spread, len(facts.shape.attention)
    spread.pipeline.require_layers(num_layers)
    num_kept = round(num_layers * (1 - setting.recompute.share))  # recomputed layers gather inputs again, one at a time
    return Setting(
        facts=facts,
        precision=setting.bytes_of,
        optimizer=setting.state,
        is_sharded=spread.shards_over is not None and setting.num_ranks > 1,
        tensor=TensorGroup(
            num_ranks=spread.tensor_ranks,
            input_bytes=facts.shape.width * setting.bytes_of.activations,
            num_inputs=INPUTS_OF_A_LAYER * max(1, num_kept),
        ),
        slices=spread.context_ranks,
        pipeline=spread.pipeline,
        keeps_gradients=setting.keeps_gradients,
        keeps_whole_gradients=spread.shards_over is not None and not spread.reduces_every_micro_step,
        keeps_gathered_blocks=not spread.reshard_after_forward,
        most_shards=spread.most_shards,
        device_bytes=setting.cluster.device_bytes,
        host=setting.host,
        offloads_state=setting.offloads_state,
        takes_back=setting.takes_back,
        steps_together=spread.equals_one_process,
        example_rows=setting.example_rows,
    )
