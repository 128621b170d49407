"""The plans of a pipeline's stages around one training: its data, its steps, its evaluations and its exports.

Every stage holds all of the training's devices, and is paid for with them; an evaluation computes on one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.quantities import format_count, format_quantity, parse_quantity
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.accounting.training_plan.stages import (
    COMPILED_START_SECONDS,
    RESULT_BYTES,
    START_SECONDS,
    EvaluationWork,
    PreparationWork,
    StagePlan,
    basis_of,
    export_seconds,
    text_bytes_per_token,
)
from lmtrain.accounting.training_plan.utilization import usd
from lmtrain.errors import ConfigurationError
from lmtrain.run.planning.calibration import kind_here, measured_peak, measurements_of
from lmtrain.run.planning.make_plan import validated_split, with_evaluation
from lmtrain.run.planning.plan import PlannedRun, planned_runs
from lmtrain.run.planning.prepared_tokens import (
    data_key,
    held_out_tokens,
    is_prepared,
    text_bytes_per_prepared_token,
)
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node


@dataclass(frozen=True, kw_only=True)
class PlannedPreparation:
    """The work ahead, and lines on its size."""

    work: PreparationWork
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class PlannedTraining:
    """A training's own plan, and the preparation of its data, None where nothing is to be done."""

    run: PlannedRun
    preparation: PlannedPreparation | None

    @property
    def config(self) -> RunConfig:
        """Return the training's config."""
        return self.run.config

    @cached_property
    def plan(self) -> Plan:
        """Return the training's plan; its validation reads the text that will be held out."""
        plan = self.run.plan
        if plan.evaluation is not None or self.preparation is None:
            return plan
        return with_evaluation(plan, self.config, held_out=[self.preparation.work.validation_tokens])

    @property
    def data_key(self) -> str:
        """Return the same text for the same data."""
        return data_key(self.config)

    @property
    def text_bytes_per_token(self) -> float:
        """Return the bytes of a token's text: of the prepared data, or to be."""
        if self.preparation is not None:
            return self.preparation.work.text_bytes_per_token
        return text_bytes_per_prepared_token(self.config) or text_bytes_per_token(None)

    @property
    def test_tokens(self) -> int:
        """Return the tokens of the split of `lmtrain evaluate`."""
        if self.preparation is not None:
            return self.preparation.work.test_tokens
        return sum(held_out_tokens(self.config, "test") or held_out_tokens(self.config, validated_split(self.config)))

    def seconds_per_token(self, dtype: MatmulDtype) -> float | None:
        """Return a training step's time for a token on one device in `dtype`, at the plan's share of the peak."""
        speed, peak = self.plan.speed, self._peak(dtype)
        return self.plan.flops_per_token.palm / (peak * speed.mfu_palm) if speed and peak else None

    def priced(self, stage: StagePlan) -> StagePlan:
        """Return a stage with the price of all devices for its time."""
        price, batch = self.config.cluster.usd_per_gpu_hour, self.plan.batch
        if stage.seconds is None or price is None:
            return stage
        return replace(stage, usd=usd(stage.seconds, num_devices=batch.num_ranks, usd_per_gpu_hour=price))

    def data(self) -> StagePlan | None:
        """Return the preparation of its data, None where nothing is to be done."""
        if self.preparation is None:
            return None
        work = self.preparation.work
        return self.priced(
            StagePlan(
                tokens=round(work.num_tokens),
                seconds=work.seconds,
                disk_bytes=work.disk_bytes,
                kept_bytes=work.kept_bytes,
                basis="assumed",
                reasons=self.preparation.reasons,
            )
        )

    def steps(self) -> StagePlan:
        """Return the training itself, with its start where the plan has none, and its files at most."""
        plan, run = self.plan, self.run
        seconds, reason = plan.seconds, f"speed: {plan.speed.source}" if plan.speed else ""
        if plan.speed is not None and seconds is not None and not plan.speed.setup_seconds:
            start = COMPILED_START_SECONDS if plan.is_compiled else START_SECONDS
            seconds, reason = seconds + start, f"{reason}; {start:.0f} s for its start, assumed"
        kept = plan.checkpoints
        most = plan.horizon.steps * kept.checkpoint_bytes if kept else 0
        return self.priced(
            StagePlan(
                tokens=plan.horizon.tokens if plan.knows_its_end else None,
                seconds=seconds,
                disk_bytes=min(kept.kept_bytes, most) if kept else None,
                kept_bytes=min(kept.kept_bytes - kept.checkpoint_bytes, most) if kept else None,
                basis=basis_of(plan.speed.source) if plan.speed else "",
                reasons=(reason,) if reason else (),
                lacking=() if run.advice.is_possible else tuple(run.advice.lines),
            )
        )

    def _peak(self, dtype: MatmulDtype) -> float | None:
        """Return one device's FLOP/s in `dtype`: of the cluster's device, else measured here."""
        if self.config.cluster.device is None and (measured := measured_peak(self.config, dtype)):
            return measured.flops
        found = self.config.cluster.peak(dtype)
        return found.flops if found else self.plan.peak_flops

    @property
    def memory_bytes_per_second(self) -> float | None:
        """Return the rate of a device's memory: of the table, or of a copy measured here."""
        if (device := self.config.cluster.known_device) is not None:
            return device.memory_bytes_per_second
        measured = measurements_of(self.config)
        found = [one for one in measured.devices if one.kind == kind_here(self.config, measured)]
        return found[-1].copy_bytes_per_second if found else None


def planned_training(
    words: list[str], *, learns: bool, check: Callable[[RunConfig], object] = lambda _: None
) -> PlannedTraining:
    """Plan a training by its words, and the data before it; it `learns` a tokenizer unless it starts from a run.

    `check` refuses its config.

    Raises:
        ConfigurationError: The command line is wrong.
        DataError: The files of its text are missing.
    """
    (run,) = planned_runs(words, more_checks=check)
    tokens = run.plan.horizon.tokens
    return PlannedTraining(run, planned_preparation(run.config, run_tokens=tokens, learns=learns))


def evaluated(training: PlannedTraining, work: EvaluationWork) -> StagePlan:
    """Return the plan of an evaluation of a training's run."""
    plan, dtype = training.plan, "bf16" if work.is_bf16 else "fp32"
    read = work.read_tokens(
        own_split=training.test_tokens,
        context_tokens=plan.batch.context_tokens,
        text_bytes_per_token=training.text_bytes_per_token,
    )
    per_token = training.seconds_per_token(dtype)
    weight_bytes = plan.shape.num_active_parameters * planned_setting(training.config).bytes_of.weights
    seconds = None
    if per_token is not None and not work.uncounted:
        seconds = work.seconds(
            read,
            training_seconds_per_token=per_token,
            weight_bytes=weight_bytes,
            memory_bytes_per_second=training.memory_bytes_per_second,
        )
    own = (f"the run's test split, {format_count(training.test_tokens, 'token')}",) if work.scores_own_split else ()
    where = (f"on one device in {dtype}, forward passes at a third of a step's FLOPs",) if per_token else ()
    return training.priced(
        StagePlan(
            tokens=read + work.num_answers * work.answer_tokens,
            seconds=seconds,
            disk_bytes=RESULT_BYTES,
            kept_bytes=RESULT_BYTES,
            basis="assumed" if seconds else "",
            reasons=(*own, *work.counted, *work.uncounted, *where),
        )
    )


def exported(training: PlannedTraining, *, bytes_per_value: int | None) -> StagePlan:
    """Return the plan of an export of a training's weights; `bytes_per_value` None keeps their own."""
    held = planned_setting(training.config).bytes_of.weights
    values, width = training.plan.shape.num_parameters, bytes_per_value or held
    reason = f"{format_quantity(values)} values of {format_count(width, 'byte')}, at a disk's 1 GB/s"
    return training.priced(
        StagePlan(
            seconds=export_seconds(values * width, read_bytes=values * held),
            disk_bytes=values * width,
            kept_bytes=values * width,
            basis="assumed",
            reasons=(reason,),
        )
    )


def planned_preparation(config: RunConfig, *, run_tokens: int, learns: bool) -> PlannedPreparation | None:
    """Return the preparation of a training of `run_tokens`, None where its data is prepared or needs none.

    It `learns` a tokenizer unless the training starts from a run.

    Raises:
        ConfigurationError: A setting of the source is wrong.
        DataError: Its files are missing.
    """
    folder = config.data.node("folder")
    node = folder.node("source") if folder else None
    if folder is None or node is None or is_prepared(config):
        return None
    source: Any = replace(node, key="source").checked(config.allowed).build()
    folder = folder.checked(config.allowed)
    density = text_bytes_per_token(_vocab_size(config.tokenizer))
    held_out = [float(folder.get(f"{split}_fraction") or 0.0) for split in ("validation", "test")]
    if sum(held_out) >= 1:
        shares = f"data.folder.validation_fraction={held_out[0]:g} and data.folder.test_fraction={held_out[1]:g}"
        raise ConfigurationError(f"{shares} leave no text to train on; nearest valid: 0.05 each.")
    tokens, reason = _train_tokens(folder, source, density=density, held_out=sum(held_out), run_tokens=run_tokens)
    sample = config.tokenizer.get("sample_bytes") if learns else None
    work = PreparationWork(
        train_tokens=tokens,
        validation_share=held_out[0],
        test_share=held_out[1],
        text_bytes_per_token=density,
        bytes_per_token=_bytes_per_token(folder, config.tokenizer, has_mask=source.has_conversations),
        learned_bytes=float(parse_quantity(sample, "tokenizer.sample_bytes")) if sample else 0.0,
    )
    download = (f"streamed: of its download, at most {format_quantity(work.text_bytes, 'bytes')}, nothing is kept",)
    lines = (reason, f"{format_quantity(work.text_bytes, 'bytes')} of text at {density:.2f} bytes a token, assumed")
    return PlannedPreparation(work=work, reasons=(*lines, *(download if source.read_once else ())))


def _train_tokens(folder: Node, source: Any, *, density: float, held_out: float, run_tokens: int) -> tuple[float, str]:
    """Return the tokens to train on and their origin: the budget of the data, the files' size, or the run's tokens."""
    if folder.get("token_budget") is not None:
        tokens = float(parse_quantity(folder.get("token_budget"), "data.folder.token_budget"))
        return tokens, f"{format_quantity(tokens)} tokens to train on: data.folder.token_budget"
    if source.text_bytes is not None:
        return source.text_bytes * (1 - held_out) / density, f"all of {source.name}, of a size known before"
    bound = f"data.folder.token_budget={run_tokens} data.folder.allow_short=true"
    return run_tokens, (
        f"all of {source.name}, of unknown size before its reading: figures for the run's "
        f"{format_quantity(run_tokens)} tokens, the most with {bound}"
    )


def _vocab_size(tokenizer: Node) -> int | None:
    found = tokenizer.get("vocab_size")
    return None if found is None else int(parse_quantity(found, "tokenizer.vocab_size"))


def _bytes_per_token(folder: Node, tokenizer: Node, *, has_mask: bool) -> int:
    """Return the bytes of an id and its loss mark; ids of a vocabulary of unknown size count as wide."""
    from lmtrain.data.manifest import DTYPES, MASK_DTYPE, narrowest_dtype  # numpy: only where data is to be prepared

    vocab_size = _vocab_size(tokenizer)
    fitting = [*DTYPES][-1] if vocab_size is None else narrowest_dtype(vocab_size)
    return DTYPES.get(folder.get("token_dtype"), DTYPES[fitting]).itemsize + (MASK_DTYPE.itemsize if has_mask else 0)
