"""`lmtrain tune batch OVERRIDES`: the largest micro batch by trying, beside the plan's."""

import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from lmtrain.errors import EXIT_DONE, ConfigurationError, EnvironmentProblem
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.execution.tried_run import TriedRun, checked_config, kept, try_run

if TYPE_CHECKING:
    from lmtrain.accounting.batches import BatchPlan
    from lmtrain.run.run_config import RunConfig

NONE_FITS: Final = 1
CALLBACKS: Final = ("step_log", "throughput", "token_budget")


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
    """Try micro batches until the largest that fits is found, print all; 1 where none fits.

    Raises:
        ConfigurationError: The config or a flag is wrong.
        EnvironmentProblem: A try ended for another reason than memory, or there is none for Python itself.
    """
    parser = FlagParser(prog=f"{program} batch", allow_abbrev=False, add_help=False)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked, others = parser.taken(words)
    if asked.steps < 2:
        raise ConfigurationError(
            f"--steps={asked.steps} has no step after the first, which compiles; nearest valid: 2."
        )
    typed = kept(others, also=("batch.micro_batch_sequences",))
    from lmtrain.run.planning.auto_batch import held_device, setting_here
    from lmtrain.run.planning.setting import planned_setting

    config = checked_config([*others, "batch.micro_batch_sequences=null"])
    setting = setting_here(config)
    device = held_device(config.trainer)
    whole = _whole_step(config)
    sizes = whole.micro_batches(example_rows=setting.example_rows)[::-1]
    held = setting.device_bytes or device.num_bytes
    host = None if device.name else planned_setting(config).host
    process_bytes = host.process_bytes if host else 0  # of Python and torch, beside the tensors
    limit = None if device.name else int(held)
    _require_room(limit, process_bytes)

    def attempt(size: int) -> TriedBatch:
        from lmtrain.accounting.training_plan.fit import memory_of

        batch = replace(whole, micro_batch_sequences=size, accumulation_micro_steps=whole.sequences_per_rank // size)
        planned = memory_of(setting, batch).total + process_bytes
        _say(f"trying {size} of {whole.sequences_per_rank} sequences")
        run = try_run(
            [*typed, f"batch.micro_batch_sequences={size}"],
            num_steps=asked.steps,
            callbacks=CALLBACKS,
            most_bytes=limit,
        )
        return _judged(run, size, planned=planned, held=held)

    tried = largest_that_fits(sizes, attempt)
    _tell(tried, as_json=asked.json, held=held)
    return EXIT_DONE if any(one.fits for one in tried) else NONE_FITS


def _whole_step(config: "RunConfig") -> "BatchPlan":
    """Return a step as one micro batch of a rank, of whole examples."""
    from lmtrain.run.validators.objective import objective_facts, require_examples

    whole = config.divided(replace(config.batch, micro_batch_sequences=None))
    require_examples(whole, objective_facts(config))
    return whole


def largest_that_fits(sizes: list[int], attempt: Any) -> list[TriedBatch]:
    """Try sizes by bisection, the largest first: most machines hold it, and then one try is all."""
    tried = {sizes[-1]: attempt(sizes[-1])}
    low, high = 0, len(sizes) - 1  # the answer lies below `high` where the largest failed
    if not tried[sizes[-1]].fits:
        while low < high:
            middle = (low + high) // 2
            tried[sizes[middle]] = attempt(sizes[middle])
            low, high = (middle + 1, high) if tried[sizes[middle]].fits else (low, middle)
    return [tried[size] for size in sorted(tried)]


def _require_room(limit: int | None, process_bytes: int) -> None:
    if limit is not None and limit <= process_bytes:
        raise EnvironmentProblem(
            f"{limit / 1e9:.2f} GB for each rank are less than Python and torch take, {process_bytes / 1e9:.2f} GB: "
            "not one sequence fits; free memory, or raise cluster.memory_bytes where it is set."
        )


def _judged(run: TriedRun, size: int, *, planned: int, held: int) -> TriedBatch:
    if run.exit_code != EXIT_DONE and not run.is_out_of_memory:
        raise EnvironmentProblem(
            f"batch.micro_batch_sequences={size} ended with exit code {run.exit_code}, not for memory: {run.words}"
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


def _tell(tried: list[TriedBatch], *, as_json: bool, held: int) -> None:
    best = max((one.micro_batch_sequences for one in tried if one.fits), default=None)
    if as_json:
        print(json.dumps({"largest": best, "device_bytes": held, "tried": [asdict(one) for one in tried]}))
        return
    print(f"{held / 1e9:.2f} GB for each rank\n")
    print("sequences  fits  measured GB  plan GB  by the plan  tokens/s")
    for one in tried:
        peak = "-" if one.peak_bytes is None else f"{one.peak_bytes / 1e9:.2f}"
        speed = "-" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}"
        print(
            f"{one.micro_batch_sequences:>9}  {'yes' if one.fits else 'no':>4}  {peak:>11}  "
            f"{one.planned_bytes / 1e9:>7.2f}  {'fits' if one.plan_fits else 'does not':>11}  {speed:>8}"
        )
    print(f"\n  batch.micro_batch_sequences={best}" if best else "\nnone fits; `lmtrain plan` says what would")


def _say(line: str) -> None:
    print(f"tune: {line}…", file=sys.stderr, flush=True)
