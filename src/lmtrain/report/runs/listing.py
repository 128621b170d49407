"""Runs in brief: a line per run for `ls`, a line per logged step for `tail`, and the differences of two for `diff`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast


from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, TRAIN_LOSS
from lmtrain.accounting.observed.metric_names import speed_name
from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.runs.attempts import own_steps, read_attempts
from lmtrain.report.runs.facts import newest_job, shown_state, split_measured
from lmtrain.report.runs.find import find_runs, names_apart
from lmtrain.report.runs.held_out import held_out_text, scores_notes
from lmtrain.report.visible_text import visible
from lmtrain.storage import foreign_yaml
from lmtrain.storage.damage import told_as_damage
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.parameters import flatten
from lmtrain.tracking.fork import read_fork
from lmtrain.tracking.sweep_file import HeldOutText
from lmtrain.tracking.run_log import LogOffset, newest_with, read_after
from lmtrain.tracking.run_folder import RunFolder, stored_name
from lmtrain.tracking.run_log import Point, furthest, newest, newest_point
from lmtrain.tracking.status import settled_status

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
    def is_scored_untrained(self) -> bool:
        """Report whether it has trained since its only score, the one before training."""
        return self.scored_step == 0 < self.step

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
        return _in_brief(folder)


def _in_brief(folder: Path) -> RunInBrief:
    status, log = settled_status(folder), folder / "metrics.jsonl"
    points = newest_points(log, beside=BITS_PER_BYTE)
    last, scored = furthest(points), newest_point(points, BITS_PER_BYTE)
    fork, plan = read_fork(folder), read_json(folder / "plan.json")
    attempts = read_attempts(folder, is_running=status is not None and status.status == "RUNNING")
    own = own_steps(plan, attempts, fork)
    horizon: Any = plan.get("horizon", {})
    return RunInBrief(
        name=stored_name(folder),
        folder=str(folder),
        status="UNKNOWN" if status is None else shown_state(folder, status),
        step=last.step,
        num_steps=horizon.get("steps"),
        tokens=last.tokens,
        loss=newest(points, TRAIN_LOSS),
        bits_per_byte=scored.metrics[BITS_PER_BYTE] if scored else None,
        scored_step=scored.step if scored else None,
        seconds=sum(attempt.wall_seconds for attempt in attempts),
        held_out=held_out_text(folder, points, split=split_measured(newest_job(folder))) if scored else None,
        forked_from=fork.run if fork else None,
        forked_from_is_gone=fork is not None and fork.is_gone,
        inherited_tokens=own.inherited_tokens,
        trained_share=own.trained_share,
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
            ABSENT if run.bits_per_byte is None or run.is_scored_untrained else f"{run.bits_per_byte:.4f}",
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
    tail_bytes, size = TAIL_BYTES, log.stat().st_size if log.exists() else 0
    while True:
        lines = lines_of(newest_points(log, tail_bytes=tail_bytes), num_steps, trained_share=trained_share)
        if len(lines) >= num or tail_bytes >= size:
            return lines[-num:] if num > 0 else []
        tail_bytes *= 4


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
    return {part: _differing(*(_read(read, folder) for folder in (first, second))) for part, read in parts.items()}


def _read(read: Callable[[Path], dict[str, str]], folder: Path) -> dict[str, str]:
    with told_as_damage(folder, fix="restore it, or name another run"):
        return read(folder)


def _differing(first: dict[str, str], second: dict[str, str]) -> dict[str, tuple[str, str]]:
    pairs = {name: (first.get(name, ABSENT), second.get(name, ABSENT)) for name in [*first, *second]}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


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
