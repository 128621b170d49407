"""Runs in brief: a line per run for `ls`, a line per logged step for `tail`, and the differences of two for `diff`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, TRAIN_LOSS, speed_name
from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.runs.facts import RunRecord, split_measured
from lmtrain.report.runs.find import find_runs, names_apart
from lmtrain.report.runs.held_out import held_out_text, scores_notes
from lmtrain.report.visible_text import visible
from lmtrain.storage import foreign_yaml
from lmtrain.storage.damage import told_as_damage
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.parameters import flatten
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import LogOffset, Point, furthest, newest, newest_point, newest_with, read_after
from lmtrain.tracking.sweep_file import HeldOutText

if TYPE_CHECKING:
    from rich.table import Table

TAIL_BYTES: Final = 1 << 18
ABSENT: Final = "-"
SPEED: Final = "speed/tokens_per_second"
# Of a logged step's line: the metric and how its value is written.
SHOWN: Final = (
    (TRAIN_LOSS, "loss {:.3f}"),
    ("train/lr", "lr {:.2e}"),
    (SPEED, "{:,.0f}"),
    ("speed/mfu_palm", "MFU {:.1%}"),
    (BITS_PER_BYTE, "validation {:.4f} bits/byte"),
)
RESULTS: Final = ("status", "step", "tokens", "inherited_tokens", "loss", "bits_per_byte", "scored_step", "seconds")


@dataclass(frozen=True, kw_only=True)
class RunInBrief:
    """A run's state and newest figures; None: not known yet. `changed_at` in unix seconds.

    `bits_per_byte` is of the step `scored_step`, 0 before training. `inherited_tokens` of its tokens are the parent
    run's, `forked_from`; its seconds are its own.
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
    held_out: HeldOutText | None = None
    forked_from: str | None = None
    forked_from_is_gone: bool = False
    inherited_tokens: int = 0
    trained_share: float = 1.0  # of its own tokens, with loss

    @property
    def inherited_words(self) -> str:
        """Say how many of its tokens are the parent run's; empty without a parent."""
        if self.forked_from is None:
            return ""
        tokens, gone = format_quantity(self.inherited_tokens), ", no longer there" if self.forked_from_is_gone else ""
        return f"{visible(self.name)}: {tokens} of its tokens are of {visible(self.forked_from)}{gone}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def read_runs(paths: Sequence[Path]) -> list[RunInBrief]:
    """Read all runs of some paths in brief, with names that differ.

    Raises:
        ConfigurationError: A path has no run.
        DataError: A run's folder is damaged.
    """
    return [replace(in_brief(folder), name=name) for folder, name in names_apart(find_runs(paths)).items()]


def in_brief(folder: Path) -> RunInBrief:
    """Read a run's folder: the end of its log, its plan, its state and its clock.

    Raises:
        DataError: It is damaged.
    """
    with told_as_damage(folder, fix="restore it, or name another run"):
        record, log = RunRecord(folder), folder / "metrics.jsonl"
        points = newest_points(log, beside=BITS_PER_BYTE)
        last, scored = furthest(points), newest_point(points, BITS_PER_BYTE)
        fork = record.fork
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
            held_out=held_out_text(folder, points, split=split_measured(record.job)) if scored else None,
            forked_from=fork.run if fork else None,
            forked_from_is_gone=fork is not None and fork.is_gone,
            inherited_tokens=record.own.inherited_tokens,
            trained_share=record.own.trained_share,
            changed_at=(log if log.exists() else folder).stat().st_mtime,
        )


def newest_points(log: Path, *, beside: str | None = None, tail_bytes: int = TAIL_BYTES) -> list[Point]:
    """Return the points in the last `tail_bytes` of a log, and the newest one with the metric `beside`."""
    if not log.exists():
        return []
    found = log.stat()
    start = max(0, found.st_size - tail_bytes)  # possibly within a line, which is then left out
    points = read_after(log, LogOffset(found.st_ino, start), read_bytes=tail_bytes).points
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
            ABSENT if run.bits_per_byte is None or run.scored_step == 0 < run.step else f"{run.bits_per_byte:.4f}",
            format_quantity(run.seconds, "seconds"),
            f"{format_quantity(now - run.changed_at, 'seconds')} ago",
        )
    return table


def notes_of(runs: Sequence[RunInBrief]) -> list[str]:
    """Say which of the runs' scores do not compare, and whose tokens are a parent run's."""
    inherited = [f"{run.inherited_words}; its clock is its own." for run in runs if run.inherited_words]
    return [*scores_notes(run.held_out for run in runs if run.held_out), *inherited]


def newest_lines(log: Path, num: int, num_steps: int | None, *, trained_share: float = 1.0) -> list[str]:
    """Return the lines of the newest `num` logged steps, or of all if there are fewer."""
    lines = lines_of(newest_points(log, tail_bytes=max(TAIL_BYTES, num << 10)), num_steps, trained_share=trained_share)
    return lines[-num:] if num > 0 else []


def lines_of(points: Sequence[Point], num_steps: int | None, *, trained_share: float = 1.0) -> list[str]:
    """Return a line per logged step that has a metric of `SHOWN`; speeds are of the tokens with loss."""

    def step_of(point: Point) -> int:
        return point.step

    lines: list[str] = []
    for step, same in groupby(sorted(points, key=step_of), key=step_of):  # a validation comes before its loss
        found = [*same]
        metrics = {name: value for point in found for name, value in point.metrics.items()}
        units = {SPEED: f" {speed_name(trained_share)}"}
        words = [shown.format(metrics[name]) + units.get(name, "") for name, shown in SHOWN if name in metrics]
        of = "" if num_steps is None else f"/{num_steps:,}"
        if words:
            lines.append(" | ".join([f"step {step:,}{of}", f"{format_quantity(found[-1].tokens)} tokens", *words]))
    return lines


def differences(first: Path, second: Path) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the differing settings, versions and results of two runs, by part and name.

    Raises:
        DataError: A run's folder is damaged.
    """
    parts: dict[str, Callable[[Path], dict[str, str]]] = {
        "settings": _settings,
        "made with": _versions,
        "results": _results,
    }
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for part, read in parts.items():
        values: list[dict[str, str]] = []
        for folder in (first, second):
            with told_as_damage(folder, fix="restore it, or name another run"):
                values.append(read(folder))
        pairs = {name: (values[0].get(name, ABSENT), values[1].get(name, ABSENT)) for name in values[0] | values[1]}
        found[part] = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return found


def _settings(folder: Path) -> dict[str, str]:
    config: Any = foreign_yaml.read(folder / "config.yaml") if (folder / "config.yaml").exists() else {}
    flat = flatten(cast("dict[str, object]", config or {}))
    return {name: value for name, value in flat.items() if name != "run.name"}


def _versions(folder: Path) -> dict[str, str]:
    attempts = RunFolder(folder).attempts()
    if not attempts:
        return {}
    git = {name: value for name, value in read_json(attempts[-1] / "git.json").items() if name in ("commit", "dirty")}
    return flatten(read_json(attempts[-1] / "versions.json") | {"commit": None, "dirty": None} | git)


def _results(folder: Path) -> dict[str, str]:
    brief = in_brief(folder).to_json()
    shown = {name: f"{value:.4f}" if isinstance(value, float) else str(value) for name, value in brief.items()}
    return {name: ABSENT if brief[name] is None else shown[name] for name in RESULTS}
