"""Runs in brief: a line per run for `ls`, a line per logged step for `tail`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, TRAIN_LOSS
from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.runs.facts import RunRecord
from lmtrain.report.runs.find import find_runs, names_apart
from lmtrain.storage.damage import refuse_damage
from lmtrain.tracking.run_log import LogOffset, Point, furthest, newest, newest_point, newest_with, read_after

if TYPE_CHECKING:
    from rich.table import Table

TAIL_BYTES: Final = 1 << 18
# Of a logged step's line: the metric and how its value is written.
SHOWN: Final = (
    (TRAIN_LOSS, "loss {:.3f}"),
    ("train/lr", "lr {:.2e}"),
    ("speed/tokens_per_second", "{:,.0f} tokens/s"),
    ("speed/mfu_palm", "MFU {:.1%}"),
    (BITS_PER_BYTE, "validation {:.4f} bits/byte"),
)


@dataclass(frozen=True, kw_only=True)
class RunInBrief:
    """A run's state and newest figures; None: not known yet. `changed_at` in unix seconds.

    `bits_per_byte` is of the step `scored_step`, 0 before training.
    """

    name: str
    folder: str
    status: str
    step: int
    num_steps: int | None
    tokens: int
    loss: float | None
    bits_per_byte: float | None
    scored_step: int | None
    seconds: float
    changed_at: float


def read_runs(paths: Sequence[Path]) -> list[RunInBrief]:
    """Read all runs of some paths in brief, with names that differ."""
    return [replace(in_brief(folder), name=name) for folder, name in names_apart(find_runs(paths)).items()]


def in_brief(folder: Path) -> RunInBrief:
    """Read a run's folder: the end of its log, its plan, its state and its clock."""
    with refuse_damage(folder, fix="restore it, or name another run"):
        record, log = RunRecord(folder), folder / "metrics.jsonl"
        points = newest_points(log, beside=BITS_PER_BYTE)
        last, scored = furthest(points), newest_point(points, BITS_PER_BYTE)
        return RunInBrief(
            name=record.name,
            folder=str(folder),
            status=record.shown_status,
            step=last.step,
            num_steps=record.plan.get("horizon", {}).get("steps"),
            tokens=last.tokens,
            loss=newest(points, TRAIN_LOSS),
            bits_per_byte=scored.metrics[BITS_PER_BYTE] if scored else None,
            scored_step=scored.step if scored else None,
            seconds=sum(attempt.wall_seconds for attempt in record.attempts),
            changed_at=(log if log.exists() else folder).stat().st_mtime,
        )


def newest_points(log: Path, *, beside: str | None = None, tail_bytes: int = TAIL_BYTES) -> list[Point]:
    """Return the points in the last `tail_bytes` of a log, and the newest one with the metric `beside`."""
    if not log.exists():
        return []
    found = log.stat()
    start = max(0, found.st_size - tail_bytes)  # possibly within a line, which is then left out
    points, _ = read_after(log, LogOffset(found.st_ino, start), read_bytes=tail_bytes)
    if beside is None or not start or newest_point(points, beside):
        return points
    return [*filter(None, [newest_with(log, beside)]), *points]


def table_of(runs: Sequence[RunInBrief]) -> "Table":
    """Return a table of runs, the last changed at the end."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "state", "step", "tokens", "loss", "bits/byte", "clock", "changed"):
        table.add_column(name, justify="left" if name in ("run", "state") else "right", overflow="fold")
    now = time.time()
    for run in sorted(runs, key=lambda run: run.changed_at):
        table.add_row(
            run.name,
            run.status.lower(),
            f"{run.step:,}" + ("" if run.num_steps is None else f"/{run.num_steps:,}"),
            format_quantity(run.tokens),
            "" if run.loss is None else f"{run.loss:.3f}",
            "-" if run.bits_per_byte is None or run.scored_step == 0 < run.step else f"{run.bits_per_byte:.4f}",
            format_quantity(run.seconds, "seconds"),
            f"{format_quantity(now - run.changed_at, 'seconds')} ago",
        )
    return table


def newest_lines(log: Path, num: int, num_steps: int | None) -> list[str]:
    """Return the lines of the newest `num` logged steps, or of all if there are fewer."""
    lines = lines_of(newest_points(log, tail_bytes=max(TAIL_BYTES, num << 10)), num_steps)
    return lines[-num:] if num > 0 else []


def lines_of(points: Sequence[Point], num_steps: int | None) -> list[str]:
    """Return a line per logged step that has a metric of `SHOWN`; speeds are of the tokens with loss."""

    def step_of(point: Point) -> int:
        return point.step

    lines: list[str] = []
    for step, same in groupby(sorted(points, key=step_of), key=step_of):  # a validation comes before its loss
        found = [*same]
        metrics = {name: value for point in found for name, value in point.metrics.items()}
        words = [shown.format(metrics[name]) for name, shown in SHOWN if name in metrics]
        of = "" if num_steps is None else f"/{num_steps:,}"
        if words:
            lines.append(" | ".join([f"step {step:,}{of}", f"{format_quantity(found[-1].tokens)} tokens", *words]))
    return lines
