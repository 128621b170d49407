"""What the loops said as figures, and the figures as a Markdown table."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.train_step.driver import Contestant
from benchmarks.harness.train_step.loops import architecture_of, counterpart
from benchmarks.harness.train_step.task import Task

Row = dict[str, Any]
HEADS = (
    "loop", "trains", "parameters", "ms a step (quartiles)", "against bare", "against our Trainer (quartiles)",
    "tokens/s", "MFU palm", "MFU causal", "of matmul", "peak memory", "first step", "host syncs a step",
)  # fmt: skip


def rows(contestants: Sequence[Contestant], task: Task, *, peak_flops: float, matmul_flops: float) -> list[Row]:
    """Return a row for each loop; speed is by CPU seconds of its process on a CPU, by CUDA events on a GPU."""
    clock = "device_seconds" if task.device == "cuda" else "cpu_seconds"
    return [
        {"loop": one.name, "given": one.facts.get("given"), "skipped": one.facts.get("skipped", "it took no turn")}
        if not one.is_running or not one.turns
        else _row(one, task, clock, peak_flops=peak_flops, matmul_flops=matmul_flops)
        | {f"against_{kind}": _against(one, kind, contestants, clock) for kind in ("bare", "trainer")}
        for one in contestants
    ]


def _against(one: Contestant, kind: str, contestants: Sequence[Contestant], clock: str) -> dict[str, float] | None:
    """Return the ratio to our own loop of the same architecture, turn by turn; None where it took no part.

    Of several starts, what is spread is each one's median: turns of one process share its luck.
    """
    ours = next((other for other in contestants if other.name == counterpart(one.name, kind) and other.turns), None)
    if ours is None or len(ours.turns) != len(one.turns):
        return None
    ratios = [
        [turn[clock] / other[clock] for turn, other in zip(turns, others, strict=True)]
        for turns, others in zip(one.starts, ours.starts, strict=True)
    ]
    return _spread(ratios[0] if len(ratios) == 1 else [statistics.median(start) for start in ratios])


def _row(one: Contestant, task: Task, clock: str, *, peak_flops: float, matmul_flops: float) -> Row:
    seconds = [turn[clock] for turn in one.turns]
    tokens_per_second = task.tokens_per_step / statistics.median(seconds)
    return {
        "loop": one.name,
        "architecture": architecture_of(one.name),
        "step_seconds": _spread(seconds),
        "step_seconds_of_starts": [statistics.median(turn[clock] for turn in turns) for turns in one.starts],
        "wall_step_seconds": _spread([turn["wall_seconds"] for turn in one.turns]),
        "tokens_per_second": tokens_per_second,
        "mfu_palm": task.flops.palm * tokens_per_second / peak_flops,
        "mfu_causal": task.flops.causal * tokens_per_second / peak_flops,
        "of_matmul_rate": task.flops.causal * tokens_per_second / matmul_flops,
        "helper_cpu_seconds": statistics.mean(turn["helper_cpu_seconds"] for turn in one.turns),
        **one.facts,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    lower, median, upper = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (*values, *values, *values)
    )
    return {"median": median, "lower_quartile": lower, "upper_quartile": upper}


def markdown(found: Sequence[Row]) -> str:
    """Return the table; loops that could not take part stand below it with the reason."""
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in found if "skipped" not in row]
    skipped = [f"- {row['loop']} took no part: {row['skipped']}" for row in found if "skipped" in row]
    return "\n".join([*lines, *([""] if skipped else []), *skipped])


def page(report: dict[str, Any], *, command: str) -> str:
    """Return the page of a measurement: what was measured, on what, and a table for each mode."""
    task, peak, matmul = report["task"], report["peak_flops"] / 1e9, report["matmul_flops"] / 1e9
    shape = ", ".join(f"{name.removeprefix('num_').replace('_', ' ')} {value}" for name, value in task.items())
    given = {row["loop"]: row["given"] for rows in report["modes"].values() for row in rows if row.get("given")}
    parts = [
        f"# One optimizer step under the same ruler: {report['device']}",
        f"`{command}`, torch {report['torch']}, Python {report['python']}, {report['date']}. {shape}.",
        f"MFU divides by {peak:,.0f} GFLOP/s, the last share by the {matmul:,.0f} that a square matrix product reaches"
        " here; all loops are counted with the same FLOPs. Ratios are medians over turns, or over starts if there are"
        " several, to our own loop that trains the same architecture: above 1 a step takes longer than ours. `+` is"
        " what a helping process takes beside.",
        *(f"## {mode}\n\n{markdown(rows)}" for mode, rows in report["modes"].items()),
        "## What each was given\n\n" + "\n".join(f"- {loop}: {what}." for loop, what in given.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _milliseconds(spread: dict[str, float]) -> str:
    return f"{1e3 * spread['lower_quartile']:.2f} to {1e3 * spread['upper_quartile']:.2f}"


def _ratio(spread: dict[str, float] | None) -> str:
    if spread is None:
        return "-"
    return f"{spread['median']:.3f} ({spread['lower_quartile']:.3f} to {spread['upper_quartile']:.3f})"


def _cells(row: Row) -> list[str]:
    step = row["step_seconds"]
    helper = f" + {1e3 * row['helper_cpu_seconds']:.2f}" if row["helper_cpu_seconds"] > 5e-6 else ""
    return [
        row["loop"],
        row["architecture"],
        f"{row['num_parameters']:,}",
        f"{1e3 * step['median']:.2f}{helper} ({_milliseconds(step)})",
        _ratio(row["against_bare"]).partition(" ")[0],
        _ratio(row["against_trainer"]),
        f"{row['tokens_per_second']:,.0f}",
        f"{row['mfu_palm']:.1%}",
        f"{row['mfu_causal']:.1%}",
        f"{row['of_matmul_rate']:.1%}",
        f"{row['peak_bytes'] / 1e6:,.0f} MB",
        f"{row['first_step_seconds']:.1f} s",
        f"{row['host_syncs']:.1f}",
    ]
