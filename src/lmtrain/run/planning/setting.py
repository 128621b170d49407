"""A composed config's choices for planning: devices, formats, sharding. Loads nothing heavy."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.machine.number_formats import PrecisionBytes, utilization_format
from lmtrain.accounting.model.memory import COMPILER_BYTES, PROCESS_BYTES, HostMemory
from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.model.optimizer_state import OptimizerState
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.parts import AttentionFacts, AverageFacts, LossFacts, RecomputeFacts, SpikeFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.errors import ConfigurationError
from lmtrain.precision.cpu_features import bf16_flags
from lmtrain.run.planning.measurements import kind_here, measurements_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.check import TARGET
from lmtrain.run.schema.facts import require_facts
from lmtrain.run.schema.node import Node
from lmtrain.run.validators.optimizer import require_float8_head, require_offload, require_rounding
from lmtrain.run.validators.parallelism import require_parts, require_ranks, require_stages, require_workers
from lmtrain.run.validators.task import example_rows, objective_facts, require_adaptable, require_whole_sequences

# Measured at the peak of a distillation's backward pass: eight tensors of a chunk's scores, and seven of a top k.
WITH_TEACHER: Final = LossFacts(in_chunks=True, chunk_tokens=4096, num_further_tensors=7)


def planned_setting(config: RunConfig) -> Setting:
    """Read the choices of a composed config."""
    require_float8_head(config)
    require_rounding(config)
    require_parts(config)
    require_workers(config)
    require_stages(config)
    require_adaptable(config)
    require_ranks(config)
    require_whole_sequences(config)
    on_gpu, allowed = config.cluster.device is not None, config.allowed
    compiles = config.compilation
    place: dict[str, Any] = {"on_gpu": on_gpu, "is_compiled": compiles.compiles}
    spread = require_facts(config.strategy.values, ModelSpread, allowed=allowed)
    host = _host(config, is_compiled=compiles.compiles)
    require_offload(config, on_cpu=host is not None)
    attention = config.facts(AttentionFacts, **place) or AttentionFacts()
    heads, kv_heads = (config.model.values.get(name) for name in ("num_heads", "num_kv_heads"))
    return Setting(
        cluster=config.cluster,
        num_ranks=config.num_ranks,
        precision=(precision := _precision(config, on_gpu=on_gpu)),
        state=_state(config, precision.bytes_of),
        spread=spread,
        recompute=config.facts(RecomputeFacts) or RecomputeFacts(),
        attention=attention,
        loss=WITH_TEACHER if config.teacher else config.facts(LossFacts) or LossFacts(),
        is_compiled=compiles.compiles,
        host=host,
        offloads_state=config.optimizer_cpu_offload,
        takes_back=(config.facts(SpikeFacts) or SpikeFacts()).takes_back,
        masks_documents=config.packing.get("document_mask") is True
        and attention.masks_beyond is not None
        and config.batch.context_tokens > attention.masks_beyond,
        example_rows=example_rows(config),
        expert_imbalance=config.experts.imbalance if spread.expert_ranks > 1 else 1.0,
        cut_at_tokens=config.model.get("max_context_tokens") or config.batch.context_tokens,
        num_future_tokens=config.model.get("num_future_tokens") or 0,
        teacher=_teacher(config),
        share_of_kv_heads=kv_heads / heads if isinstance(heads, int) and isinstance(kv_heads, int) else 1.0,
    )


def _teacher(config: RunConfig) -> ModelShape | None:
    """Return the shape of the teacher, None without one."""
    if config.teacher is None:
        return None
    from lmtrain.run.stored_runs.loaded_models import stored_shape  # torch

    return stored_shape(Path(config.teacher), key="teacher", allowed=config.allowed)


def _host(config: RunConfig, *, is_compiled: bool) -> HostMemory | None:
    if config.cluster.device is not None or kind_here(config, measurements_of(config)) != "cpu":
        return None
    snapshots = (facts.snapshot_from_bytes for facts in config.callback_facts.values())
    return HostMemory(
        process_bytes=PROCESS_BYTES + (COMPILER_BYTES if is_compiled else 0),
        snapshot_from_bytes=min((size for size in snapshots if size is not None), default=None),
    )


def _state(config: RunConfig, held: PrecisionBytes) -> OptimizerState:
    """Return the values kept for each parameter: by optimizer, average, strategy, and an objective's starting model."""
    state = require_facts(config.optimizer.values, OptimizerFacts, allowed=config.allowed).state
    average = config.facts(AverageFacts) or AverageFacts()
    objective = objective_facts(config)
    start = held.weights + held.compute_copy if objective and objective.keeps_start else 0
    return replace(state, average_bytes=average.num_bytes + config.spread.kept_bytes + start)


def _precision(config: RunConfig, *, on_gpu: bool) -> PrecisionFacts:
    """Return the formats, chosen for those devices where the precision chooses."""
    place = {"has_bf16": on_gpu or bool(bf16_flags())}
    found = require_facts(config.precision.values, PrecisionFacts, allowed=config.allowed, **place)
    if found.residual not in (None, "bf16"):
        raise ConfigurationError(f"precision.residual must be bf16 or null, got {found.residual}.")
    return found


def attention_of(config: RunConfig, setting: Setting) -> Node:
    """Return the attention to measure with: one with equal memory, where the run's own runs elsewhere."""
    target = setting.attention.measured_as
    return config.attention if target is None else Node("attention", {TARGET: target})


def with_facts(setting: Setting, facts: ModelFacts) -> Setting:
    """Return the inputs of the memory of a device, from a config's choices and its model's facts."""
    setting.spread.pipeline.require_layers(len(facts.shape.attention))
    return replace(setting, known_facts=facts)


def speed_line(setting: Setting) -> str | None:
    """Return a note for products faster than the format of the peak; None where they are of that format."""
    products, counted = setting.bytes_of.matmul, utilization_format(setting.bytes_of.matmul)
    return None if products == counted else f"time: MFU of {products} counts the peak of {counted}"
