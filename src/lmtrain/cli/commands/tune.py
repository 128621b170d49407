"""`lmtrain tune lr` and `lmtrain tune batch`: a setting found by short trainings of the config itself.

lr is a range test: some steps at ever higher learning rates. batch finds the largest micro batch by trying.
"""

import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.lr_range import LrRange, judge
from lmtrain.accounting.observed.metric_names import TRAIN_LOSS
from lmtrain.cli.help import HELP_FLAGS, verb_page
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError, EnvironmentProblem, suggest
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.compose.paths import key_of
from lmtrain.run.execution.tried_run import TriedRun, checked_config, kept, try_run
from lmtrain.run.run_config import RunConfig

LR_CALLBACKS: Final = ("step_log", "divergence", "token_budget")
BATCH_CALLBACKS: Final = ("step_log", "throughput", "token_budget")
LEAST_LR_STEPS, LEAST_BATCH_STEPS = 30, 2  # for a curve; one after the first step, which compiles


def tune(words: list[str], *, program: str = "lmtrain tune") -> int:
    """Find a learning rate or a micro batch; 1 where there is nothing to suggest.

    Raises:
        ConfigurationError: Neither is asked for, or the config or a flag is wrong.
        EnvironmentProblem: The machine could not train it.
    """
    if HELP_FLAGS & set(words) or not words:
        print(verb_page("tune", program=program))
        return EXIT_DONE
    kind, *others = words
    kinds = {"lr": tune_lr, "batch": tune_batch}
    if kind not in kinds:
        raise ConfigurationError(f"{program} {kind}: must be lr or batch.{suggest(kind, kinds)}")
    return kinds[kind](others, program=f"{program} {kind}")


def tune_lr(words: list[str], *, program: str) -> int:
    """Make a range test, write its plot, and print the command to train with."""
    asked, others = _flags(program, words, steps=100, least=LEAST_LR_STEPS, lowest=1e-3, highest=100.0)
    if not 0 < asked.lowest < asked.highest:
        raise ConfigurationError(
            f"--lowest must be above 0 and below --highest={asked.highest:g}, got {asked.lowest:g}."
        )
    config, typed = checked_config(others), kept(others, also=("schedule", "spikes"))
    rates = lr_settings(config.optimizer.values)
    sweep = ["schedule=range_test", f"schedule.lowest={asked.lowest:g}", f"schedule.highest={asked.highest:g}"]
    _say(f"{asked.steps} steps of training at rising learning rates (--steps); a typed budget is not used")
    tried = try_run([*typed, *sweep], num_steps=asked.steps, callbacks=LR_CALLBACKS, progress=_say)
    losses = tried.curve(TRAIN_LOSS)
    if not losses:
        raise EnvironmentProblem(f"the range test did not train (exit code {tried.exit_code}): {tried.words}")
    of_step = dict(tried.curve("train/lr"))
    points = [(of_step[step] / rates["lr"], loss) for step, loss in losses if step in of_step]
    found = judge(points, num_asked=asked.steps)
    if config.scaling:  # a rule multiplies the rates: the base's are typed
        rates = {name: config.scaling.to_type(f"optimizer.{name}", rate) for name, rate in rates.items()}
    settings = {f"optimizer.{name}": (found.steepest or 0.0) * rate for name, rate in rates.items()}
    changed = [f"{key}={rate:.3g}" for key, rate in settings.items()] if found.steepest else []
    command = shlex.join(["lmtrain", "train", *(word for word in others if key_of(word) not in settings), *changed])
    from lmtrain.report.lr_range_page import lr_range_lines, write_lr_range

    plot = write_lr_range(found, lr=rates["lr"], folder=Path(config.run.root) / ".tune", words=typed)
    if asked.json:
        print(json.dumps(_lr_json(found, rates["lr"], command=command, plot=plot)))
    else:
        print("\n".join(lr_range_lines(found, lr=rates["lr"], command=command, plot=plot)))
    return EXIT_DONE if found.steepest else EXIT_NO


def lr_settings(optimizer: Mapping[str, Any]) -> dict[str, float]:
    """Return the optimizer's learning rates by name, `lr` first; a range test moves them together.

    Raises:
        ConfigurationError: It has no `lr`.
    """
    rates = {
        name: float(value)
        for name, value in optimizer.items()
        if (name == "lr" or name.endswith("_lr")) and isinstance(value, int | float) and value > 0
    }
    if "lr" not in rates:
        raise ConfigurationError("optimizer.lr must be a number above 0: nothing to tune.")
    return {"lr": rates["lr"], **rates}


def _lr_json(found: LrRange, lr: float, *, command: str, plot: Path) -> dict[str, Any]:
    shares = {"suggested_lr": found.steepest, "lowest_loss_lr": found.lowest, "broke_lr": found.broke}
    return {
        **{name: None if share is None else share * lr for name, share in shares.items()},
        "command": command if found.steepest else None,
        "problem": found.problem,
        "noise": found.noise,
        "plot": str(plot),
        "curve": [[share * lr, loss] for share, loss in found.smoothed],
    }


@dataclass(frozen=True, kw_only=True)
class TriedBatch:
    """A micro batch tried: bytes of a device by the plan and as measured, tokens/s of all ranks."""

    micro_batch_sequences: int
    fits: bool
    planned_bytes: int
    plan_fits: bool
    peak_bytes: float | None
    tokens_per_second: float | None


def tune_batch(words: list[str], *, program: str) -> int:
    """Try micro batches until the largest that fits is found, and print all."""
    asked, others = _flags(program, words, steps=3, least=LEAST_BATCH_STEPS)
    from lmtrain.accounting.training_plan.fit import memory_of
    from lmtrain.run.planning.machine_limits import held_device, setting_here
    from lmtrain.run.planning.setting import planned_setting

    typed = kept(others, also=("batch.micro_batch_sequences",))
    config = checked_config([*others, "batch.micro_batch_sequences=null"])
    setting, device, whole = setting_here(config), held_device(config.trainer), _whole_step(config)
    held = int(setting.device_bytes or device.num_bytes)
    host = None if device.name else planned_setting(config).host
    process_bytes = host.process_bytes if host else 0  # of Python and torch, next to the tensors
    limit = None if device.name else held
    if limit is not None and limit <= process_bytes:
        raise EnvironmentProblem(
            f"{limit / 1e9:.2f} GB for each rank are less than Python and torch take, {process_bytes / 1e9:.2f} GB; "
            "free memory, or raise cluster.memory_bytes where it is set."
        )

    def attempt(size: int) -> TriedBatch:
        batch = replace(whole, sequences_per_micro_step=size, accumulation_micro_steps=whole.sequences_per_rank // size)
        _say(f"trying {size} of {whole.sequences_per_rank} sequences")
        settings = [*typed, f"batch.micro_batch_sequences={size}"]
        run = try_run(settings, num_steps=asked.steps, callbacks=BATCH_CALLBACKS, most_bytes=limit)
        return _judged(run, size, planned=memory_of(setting, batch).total + process_bytes, held=held)

    tried = largest_that_fits(whole.micro_batches(example_rows=setting.example_rows)[::-1], attempt)
    best = max((one.micro_batch_sequences for one in tried if one.fits), default=None)
    if asked.json:
        print(json.dumps({"largest": best, "device_bytes": held, "tried": [asdict(one) for one in tried]}))
    else:
        _print_batches(tried, best, held=held)
    return EXIT_NO if best is None else EXIT_DONE


def _whole_step(config: RunConfig) -> Any:
    """Return a step as one micro batch of a rank, of whole examples."""
    from lmtrain.run.validators.task import objective_facts, require_examples

    whole = config.divided(config.batch)
    require_examples(whole, objective_facts(config))
    return whole


def largest_that_fits(sizes: Sequence[int], attempt: Callable[[int], TriedBatch]) -> list[TriedBatch]:
    """Try rising sizes by bisection, the largest first: most machines hold it, and then one try is all."""
    tried = {sizes[-1]: attempt(sizes[-1])}
    low, high = 0, 0 if tried[sizes[-1]].fits else len(sizes) - 1  # the answer lies below `high`
    while low < high:
        middle = (low + high) // 2
        tried[sizes[middle]] = attempt(sizes[middle])
        low, high = (middle + 1, high) if tried[sizes[middle]].fits else (low, middle)
    return [tried[size] for size in sorted(tried)]


def _judged(run: TriedRun, size: int, *, planned: int, held: int) -> TriedBatch:
    if run.exit_code != EXIT_DONE and not run.is_out_of_memory:
        raise EnvironmentProblem(
            f"batch.micro_batch_sequences={size}: failed with exit code {run.exit_code}: {run.words}"
        )
    peaks, speeds = run.curve("memory/peak_bytes"), run.curve("speed/tokens_per_second")
    return TriedBatch(
        micro_batch_sequences=size,
        fits=run.exit_code == EXIT_DONE,
        planned_bytes=planned,
        plan_fits=planned <= held,
        peak_bytes=max((value for _, value in peaks), default=None),
        tokens_per_second=speeds[-1][1] if speeds else None,
    )


def _print_batches(tried: Sequence[TriedBatch], best: int | None, *, held: int) -> None:
    print(f"{held / 1e9:.2f} GB for each rank\n\nsequences  fits  measured GB  plan GB  by the plan  tokens/s")
    for one in tried:
        peak = "-" if one.peak_bytes is None else f"{one.peak_bytes / 1e9:.2f}"
        speed = "-" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}"
        fits, planned = ("yes" if one.fits else "no"), ("fits" if one.plan_fits else "does not")
        row = f"{one.micro_batch_sequences:>9}  {fits:>4}  {peak:>11}  {one.planned_bytes / 1e9:>7.2f}"
        print(f"{row}  {planned:>11}  {speed:>8}")
    print(f"\n  batch.micro_batch_sequences={best}" if best else "\nnone fits; `lmtrain plan` has advice")


def _flags(
    program: str, words: Sequence[str], *, steps: int, least: int, **shares: float
) -> tuple[Namespace, list[str]]:
    parser = FlagParser(prog=program, allow_abbrev=False, add_help=False)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--json", action="store_true")
    for name, default in shares.items():
        parser.add_argument(f"--{name}", type=float, default=default)
    asked, others = parser.taken(words)
    if asked.steps < least:
        raise ConfigurationError(f"--steps must be at least {least}, got {asked.steps}.")
    return asked, others


def _say(line: str) -> None:
    print(f"lmtrain tune: {line}", file=sys.stderr, flush=True)
