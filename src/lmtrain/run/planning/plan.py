"""Plan a training from its own config: memory, time and cost."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from lmtrain.accounting.batches import MICRO_BATCH, BatchPlan
from lmtrain.accounting.quantities import format_quantity
from lmtrain.accounting.training_plan.plan import Advice, Plan
from lmtrain.accounting.training_plan.setting import Setting, largest_micro_batch, memory_of, with_micro_batch
from lmtrain.accounting.training_plan.utilization import usd
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.gate import checked_configs
from lmtrain.run.planning.choices import (
    advice,
    setting_if_known,
    with_compilation,
    with_recompute,
)
from lmtrain.run.planning.cold_start import Start, expected_start
from lmtrain.run.planning.known_models import model_facts
from lmtrain.run.planning.make_plan import PlanFacts, make_plan, planned_checkpoints, validated_split
from lmtrain.run.planning.measurements import kind_here, measurements_of, peak_here
from lmtrain.run.planning.network_rate import network_line
from lmtrain.run.planning.prepared_tokens import (
    awaited_facts,
    held_out_tokens,
    prepared_epoch_tokens,
    prepared_train_tokens,
    require_split,
    source_epochs,
)
from lmtrain.run.planning.setting import planned_setting, speed_line, with_facts
from lmtrain.run.planning.strategy_choice import with_strategy
from lmtrain.run.planning.tried_words import with_words
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.callbacks import callback_lines
from lmtrain.run.validators.optimizer import rate_line, require_ramps_fit
from lmtrain.run.validators.parallelism import require_parts
from lmtrain.run.validators.task import objective_facts, require_examples


@dataclass(frozen=True)
class PlannedRun:
    """A config's plan and advice; `title` is the model, `swept` the words of the trial.

    `start` is what a start here is known to take.
    """

    title: str
    swept: list[str]
    plan: Plan
    advice: Advice
    config: RunConfig
    start: Start | None

    @property
    def headline(self) -> str:
        """Return the title, with the seconds and dollars before the first steps."""
        if self.start is None:
            return self.title
        first, later, is_same = self.start
        price, num = self.plan.usd_per_gpu_hour, self.plan.batch.num_ranks
        dollars = None if price is None else usd(first, num_devices=num, usd_per_gpu_hour=price)
        cost = "" if dollars is None else f" ({format_quantity(dollars, 'usd')})"
        then = "" if later is None else f", a later one {format_quantity(later, 'seconds')}"
        about = "takes" if is_same else "of other models here takes"
        return f"{self.title}: a first start {about} {format_quantity(first, 'seconds')}{cost}{then}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values; steps, tokens, epochs and FLOPs of a run whose end is not known are null."""
        plan, ahead = self.plan.to_json(), asdict(self.plan.ahead)
        rest = {name: ahead[name] for name in ("steps", "tokens", "flops")}
        plan["ahead"] = {"steps_done": self.plan.done.steps} | rest
        if not self.plan.knows_its_end:
            plan["horizon"] |= dict.fromkeys(("steps", "tokens", "epochs", "flops"))
            plan["ahead"] |= dict.fromkeys(("steps", "tokens", "flops"))
        start = self.start and self.start._asdict()
        rest = {"start": start, "advice": list(self.advice.lines), "ok": self.advice.is_possible}
        return {"swept": self.swept} | plan | rest


def planned_runs(
    words: list[str],
    *,
    more_checks: Callable[[RunConfig], object] = lambda _: None,
) -> list[PlannedRun]:
    """Plan the config of a command line, or each of a sweep; `more_checks` refuses one before its model is counted."""
    found: list[PlannedRun] = []
    for config, choices in checked_configs(parse_arguments(words), place="paper"):
        _require_own_folder(config)
        require_split(config)
        more_checks(config)
        config, strategy = with_strategy(config)
        config, recompute = with_recompute(config)
        plan, fit = plan_of(config)
        on_cpu = config.cluster.device is None and kind_here(config, measurements_of(config)) == "cpu"
        eager, compilation = with_compilation(config, plan, on_cpu=on_cpu)
        if compilation and (on_cpu or setting_if_known(eager)):  # else a short run is planned as compiled
            config = eager
            plan, fit = plan_of(config)
        else:
            compilation = None
        _require_ramps(config, plan)
        epochs = source_epochs(config, plan.horizon.tokens)
        plan = replace(plan, scaling=config.scaling, source_epochs=epochs, awaits_data=awaited_facts(config))
        given = advice(config, plan, fit, partial(planned_with, config))
        notes = [
            rate_line(config),
            speed_line(fit),
            network_line(config, plan, fit),
            *callback_lines(config),
            *_of_start(config, plan),
            *(strategy or "").splitlines(),
            recompute,
            compilation,
        ]
        given = replace(given, lines=(*filter(None, notes), *given.lines))
        start = expected_start(config, fit, plan.batch)
        found.append(PlannedRun(choices.title, choices.swept, plan, given, config, start))
    return found


def _of_start(config: RunConfig, plan: Plan) -> list[str]:
    """Compare the run with the one whose weights it starts from."""
    if config.init_from is None or plan.seconds is None:
        return []
    from lmtrain.report.runs.facts import base_run  # of a few plans alone

    base = base_run(config.init_from)
    return [base.words_of_share(plan.seconds * plan.batch.num_ranks, plan.usd)] if base else []


def _require_own_folder(config: RunConfig) -> None:
    """Refuse prepared data in a store, as preparing does."""
    folder = config.data.node("folder")
    root = str(folder.get("root") or folder.get("path") or "") if folder else ""
    if "://" in root:
        raise ConfigurationError(
            f"data.folder.root must be a folder of this machine, got {root}; mount the store there."
        )


def plan_of(config: RunConfig) -> tuple[Plan, Setting]:
    """Compute the whole plan of a config, memory and checkpoints too, without building it; and its memory's inputs."""
    setting = planned_setting(config)
    fit = with_facts(setting, model_facts(config, setting))
    facts = fit.facts
    require_parts(config, facts.shape)
    batch = planned_batch(config, fit)
    plan = make_plan(
        config,
        PlanFacts(
            setting=setting,
            shape=facts.shape,
            batch=batch,
            parameters=facts.parameters,
            bytes_of=setting.bytes_of,
            train_tokens=prepared_train_tokens(config),
            epoch_tokens=prepared_epoch_tokens(config),
            held_out=held_out_tokens(config, validated_split(config)),
            peak=setting.peak() or peak_here(config, setting.cluster, setting.bytes_of.matmul),
            peak_source=f"unknown: set cluster.device, cluster.peak_flops, or run {_doctor_of(config)}",
            is_compiled=setting.is_compiled,
            trusts_assumed_speed=True,
        ),
    )
    plan = replace(
        plan,
        components=facts.components,
        device_bytes=fit.device_bytes,
        memory=memory_of(fit, batch),
        checkpoints=planned_checkpoints(config, setting, facts.parameters),
    )
    return plan, fit


def _doctor_of(config: RunConfig) -> str:
    """Return the command to measure this machine: a CPU's ranks share its threads."""
    devices, threads = config.trainer.devices, config.trainer.cpu_threads
    words = ["lmtrain doctor", *([f"trainer.devices={devices}"] if devices > 1 else [])]
    return " ".join([*words, *([f"trainer.cpu_threads={threads}"] if threads is not None else [])])


def planned_with(config: RunConfig, words: Sequence[str]) -> Plan | None:
    """Return the plan of a config with some words typed, None where they are refused."""
    try:
        changed = with_words(config, words)
        plan, _ = plan_of(changed)
        _require_ramps(changed, plan)
    except ConfigurationError:
        return None
    return plan


def _require_ramps(config: RunConfig, plan: Plan) -> None:
    ramps = config.with_checked("schedule", "momentum_schedule")
    require_ramps_fit(ramps, horizon=plan.horizon, tokens_per_step=plan.batch.tokens_per_step)


def planned_batch(config: RunConfig, fit: Setting) -> BatchPlan:
    """Divide a step over the devices; an `auto` micro batch becomes the largest that fits."""
    whole = config.divided(config.batch)
    require_examples(whole, objective_facts(config))
    if not config.batch.is_auto:
        return whole
    if found := largest_micro_batch(fit, whole):
        return found
    rows = fit.example_rows
    single = with_micro_batch(whole, rows)
    needed, held = memory_of(fit, single).total / 1e9, (fit.device_bytes or 0) / 1e9
    raise ConfigurationError(
        f"{MICRO_BATCH}=auto: not even {rows} fits, which needs {needed:.1f} GB of {held:.1f} GB; "
        f"`lmtrain plan {MICRO_BATCH}={rows}` has advice."
    )
