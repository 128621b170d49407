"""A config's step on any cluster: one rank's real step on fake tensors, timed by stated rates.

Of alike blocks a few are run, and the figures of the others follow along a line.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.accounting.training_plan.simulated_step import (
    Kernel,
    Phase,
    Rates,
    SimulatedFleet,
    StepFigures,
    along_line,
    by_phase,
    figures_of,
    repeated,
)
from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.optim.schedules import constant
from lmtrain.precision.policy import Precision, as_it_is, cast_parameters
from lmtrain.run.builders.model import adapting, build_strategy, planned_model
from lmtrain.run.builders.optimization import build_optimizer, rehearsed_optimizer
from lmtrain.run.planning.setting import PlannedSetting, attention_of, planned_setting
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.optimizer import CPU_OFFLOAD
from lmtrain.simulate.kernel_costs import FORMATS, Formats
from lmtrain.simulate.rank_step import RecordedStep, SimulatedRank, record_step
from lmtrain.training.module import CausalLMModule
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.transforms import ModelTransforms

FEW_BLOCKS: Final = (4, 5)  # of alike blocks: from there on each adds the same to every moment
FIRST_MOMENTS: Final = 3  # of a backward pass counted from its beginning


@dataclass(frozen=True)
class Simulation:
    """A checked config with its parts, ready to be simulated."""

    config: RunConfig
    setting: PlannedSetting
    batch: BatchPlan
    model: LanguageModel
    rates: Rates

    def run(self) -> SimulatedFleet:
        """Simulate the step."""
        peak = self.setting.peak()
        device = self.config.cluster.known_device
        assert peak is not None
        return SimulatedFleet(
            strategy=self.config.strategy.word,
            batch=self.batch,
            figures=_figures(self),
            flops_per_token=flops_per_token(self.model.shape(), self.batch.context_tokens).palm,
            peak_flops=peak.flops,
            device_bytes=device.memory_bytes if device else None,
        )


def simulation(config: RunConfig) -> Simulation:
    """Check a config of known rates and build its model on meta; nothing is run.

    Raises:
        ConfigurationError: The run itself would be refused.
    """
    if config.optimizer_cpu_offload:
        raise ConfigurationError(
            f"{CPU_OFFLOAD}=true: a simulated device keeps its optimizer state; `lmtrain plan` counts the way to host "
            "memory. Did you mean false?"
        )
    setting = planned_setting(config)
    batch = config.divided(config.batch)
    model = planned_model(config)
    if batch.context_tokens > model.max_context_tokens:
        raise ConfigurationError(
            f"batch.context_tokens={batch.context_tokens} is beyond model.max_context_tokens="
            f"{model.max_context_tokens}. Did you mean {model.max_context_tokens}?"
        )
    rehearsed_optimizer(config, model)
    _parallelism(config, setting).require(model)
    return Simulation(config, setting, batch, model, Rates(cluster=config.cluster))


def _figures(asked: Simulation) -> StepFigures:
    rank, num_blocks = _rank(asked), len(asked.model.blocks)
    if num_blocks <= FEW_BLOCKS[1] or not _are_alike(asked):
        return by_phase(_figures_of(record_step(rank, num_blocks=num_blocks), asked))
    few, more = (_figures_of(record_step(_rank(asked), num_blocks=number), asked) for number in FEW_BLOCKS)
    return by_phase(along_line(few, more, blocks=FEW_BLOCKS, num_blocks=num_blocks))


def _are_alike(asked: Simulation) -> bool:
    """Return whether every block has the same parameters, attention and recomputation."""
    blocks = asked.model.blocks
    shapes = {tuple((name, *one.shape) for name, one in block.named_parameters()) for block in blocks}
    is_partial = 0 < asked.setting.recompute.share < 1
    return len(shapes) == 1 and len(set(asked.model.shape().attention)) == 1 and not is_partial


def _figures_of(step: RecordedStep, asked: Simulation) -> StepFigures:
    micro_steps = [one.events for one in step.micro_steps]
    events = repeated(micro_steps, step.end.events, num_micro_steps=asked.batch.accumulation_micro_steps)
    peaks: dict[tuple[Phase, int], dict[str, float]] = {}
    for part in [*step.micro_steps, step.end]:
        last = max(number for _, number in part.moments)
        for (phase, number), kinds in part.moments.items():
            moment = phase, number if number < FIRST_MOMENTS else number - last - 1  # the last ones from the end
            if moment not in peaks or sum(kinds.values()) > sum(peaks[moment].values()):
                peaks[moment] = {kind: float(size) for kind, size in kinds.items()}
    flops = sum(event.flops for event in events if isinstance(event, Kernel))
    return figures_of(events, peaks, flops=flops, rates=asked.rates)


def _parallelism(config: RunConfig, setting: PlannedSetting) -> Any:
    dtype = getattr(torch, setting.precision.compute_dtype)
    return build_strategy(config, facts={"num_ranks": config.num_ranks, "compute_dtype": dtype})


def _formats(asked: Simulation) -> Formats:
    """Return the formats of products that their tensors do not show; a simulated head stays in bf16."""
    matmul = asked.setting.bytes_of.matmul
    by_dtype: dict[torch.dtype, MatmulDtype] = {**FORMATS}
    if matmul == "tf32":
        by_dtype[torch.float32] = matmul
    of_head = -(-asked.model.vocab_size // asked.batch.tensor_ranks)
    return Formats(by_dtype=by_dtype, fp8_but=of_head if matmul == "fp8" else None)


def _rank(asked: Simulation) -> SimulatedRank:
    """Build the parts of a rank's step as a run does, for the devices of the cluster."""
    config, setting = asked.config, asked.setting
    option = config.model
    if "attention" in option:
        option = option.changed(attention=attention_of(config, setting).values)
    facts, parallelism = setting.precision, _parallelism(config, setting)
    convert = partial(cast_parameters, dtype=torch.bfloat16) if facts.casts_parameters else as_it_is
    precision = Precision(facts=facts, convert=convert)
    optimizer = build_optimizer(config, rank=1)  # rank 0 would print its groups

    def make_module(model: LanguageModel) -> CausalLMModule:
        return CausalLMModule(
            model,
            loss=config.loss.build(),
            optimizer=optimizer,
            schedule=constant,
            spikes=config.spikes.build(),
            batch=asked.batch,
            total_steps=1,
            seed=config.seed,
            gradient_clip_norm=config.gradient_clip_norm,
        )

    return SimulatedRank(
        build=option.build,
        make_module=make_module,
        transforms=ModelTransforms(
            adapt=adapting(config),
            precision=partial(precision.prepare, strategy_casts=parallelism.casts_parameters),
            recompute=config.recompute.build(),
            parallelize=parallelism.parallelize,
        ),
        parallelism=parallelism,
        precision=PrecisionPlugin(precision, device_type="cpu", strategy_casts=parallelism.casts_parameters),
        batch=asked.batch,
        formats=_formats(asked),
        is_compiled=setting.is_compiled,
    )
