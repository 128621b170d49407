"""The time of a run: its events, its attempts, its clock over all of them, and its speeds."""

import contextlib
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from lmtrain.accounting.observed.time_accounts import Attempt, StopwatchReading, flops_per_step, trained_share
from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.visible_text import visible
from lmtrain.storage import foreign_json
from lmtrain.tracking.events import PAUSE
from lmtrain.tracking.fork import Fork
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.stopwatch import KINDS

READING: Final = "ledger"
# Each speed of a run is over its own seconds.
OVER: Final = {"computing": "while computing", "steps": "over whole steps", "clock": "over the clock"}


def event_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of events that have a name and a start; nothing without the file."""
    if not path.is_file():
        return
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # the last line of a killed process
            row = foreign_json.parse(line)
            if isinstance(row, dict) and {"name", "start"} <= row.keys():
                yield cast("dict[str, Any]", row)


def first_rank_events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run's first rank."""
    return event_rows(folder / "events" / "rank0.jsonl")


def last_step_of(folder: Path, event: str) -> int | None:
    """Return the step of the first rank's newest event of a name, None without one."""
    steps = [int(row["step"]) for row in first_rank_events(folder) if row["name"] == event]
    return steps[-1] if steps else None


def read_attempts(folder: Path, *, is_running: bool = False) -> list[Attempt]:
    """Read each attempt's accounts from the first rank's events, oldest first."""
    attempts: list[Attempt] = []
    rows: list[dict[str, Any]] = []
    for row in first_rank_events(folder):
        if row["name"] == "attempt" and rows:
            attempts.append(_attempt(rows))
            rows = []
        rows.append(row)
    if rows:
        # Silence counts from the file's last change: the clock of the process that wrote the rows may differ from ours.
        changed_at = (folder / "events" / "rank0.jsonl").stat().st_mtime
        attempts.append(_attempt(rows, quiet_seconds=max(0.0, time.time() - changed_at) if is_running else 0.0))
    return attempts


def _attempt(rows: list[dict[str, Any]], *, quiet_seconds: float = 0.0) -> Attempt:
    last_event = max(row["start"] + row.get("seconds", 0.0) for row in rows)
    return Attempt(
        number=int(rows[0].get("attempt", 1)),
        started_at=float(rows[0].get("started_at", rows[0]["start"])),
        ended_at=last_event + quiet_seconds,
        readings=tuple(_reading(row) for row in rows if row["name"] == READING),
        pause=_pause(rows),
        num_devices=found if isinstance(found := rows[0].get("num_devices"), int) else None,
    )


def _pause(rows: list[dict[str, Any]]) -> tuple[str, float] | None:
    """Return the kind and start of a pause that has begun and not ended: its span is not written yet."""
    begun = [(number, row) for number, row in enumerate(rows) if row["name"] == PAUSE]
    if not begun:
        return None
    number, row = begun[-1]
    is_over = any(later["name"] == row.get("pause") for later in rows[number + 1 :])
    kind = row.get("kind")
    return None if is_over or kind not in KINDS else (kind, float(row["start"]))


def _reading(row: dict[str, Any]) -> StopwatchReading:
    seconds = {kind: row.get(kind, 0.0) for kind in KINDS}
    counted = {name: row.get(name) for name in ("tokens", "flops")}
    return StopwatchReading(step=row["step"], time=row["start"], seconds=seconds, **counted)


@dataclass(frozen=True, kw_only=True)
class OwnSteps:
    """The steps of a run without those of its parent run, and their tokens, each counted once.

    `trained_share` of these tokens have loss. `flops_per_step` are of the real batches, None where nobody counted.
    """

    last: int = 0
    tokens_per_step: int = 0
    trained_share: float = 1.0
    flops_per_step: float | None = None
    fork: Fork | None = None

    @property
    def first(self) -> int:
        """Return the number of steps that the parent run did, 0 without one."""
        return self.fork.step if self.fork else 0

    @property
    def num(self) -> int:
        """Return the number of own steps."""
        return self.last - self.first

    @property
    def all_tokens(self) -> int:
        """Return the tokens of the own steps, with and without loss."""
        return self.num * self.tokens_per_step

    @property
    def tokens(self) -> int:
        """Return the tokens of the own steps that have loss."""
        return round(self.all_tokens * self.trained_share)

    @property
    def flops(self) -> float | None:
        """Return the FLOPs of the own steps."""
        return None if self.flops_per_step is None else self.num * self.flops_per_step

    @property
    def inherited_tokens(self) -> int:
        """Return the tokens of the parent run."""
        return self.first * self.tokens_per_step

    @property
    def inherited_words(self) -> str:
        """Say how many tokens are the parent run's; empty without a parent."""
        return (
            f"{format_quantity(self.inherited_tokens)} of them of {visible(self.fork.run_words)}" if self.fork else ""
        )


def own_steps(attempts: Sequence[Attempt], fork: Fork | None, *, tokens_per_step: int) -> OwnSteps:
    """Return the steps up to the last one of the newest attempt that trained."""
    last = next((each.last_step for each in reversed(attempts) if each.readings), fork.step if fork else 0)
    share, flops = trained_share(attempts, tokens_per_step=tokens_per_step), flops_per_step(attempts)
    return OwnSteps(fork=fork, last=last, tokens_per_step=tokens_per_step, trained_share=share, flops_per_step=flops)


@dataclass(frozen=True)
class LoggedSpeed:
    """Over all timed intervals without pauses: tokens with loss per second, seconds, the share of tokens with loss."""

    tokens_per_second: float
    seconds: float
    loss_share: float


def logged_speed(points: Sequence[Point], attempts: Sequence[Attempt], *, first_step: int) -> LoggedSpeed | None:
    """Return a run's speed by its log, from its `first_step` on; the first step of each attempt is not timed."""
    starts = sorted({first_step, *(each.first_step for each in attempts if each.first_step)})
    counted = tokens = seconds = 0.0
    before = first_step
    for point in points:
        speed, timed = point.metrics.get("speed/tokens_per_second"), point.metrics.get("speed/timed_seconds")
        if not speed or not timed or not point.step:
            continue
        place = bisect_left(starts, point.step)
        since = max([before, *starts[max(0, place - 1) : place]])  # the last point, or a start after it
        before = point.step
        counted += point.tokens / point.step * (point.step - since - (since in starts))
        tokens, seconds = tokens + speed * timed, seconds + timed
    return LoggedSpeed(tokens / seconds, seconds, min(1.0, tokens / counted)) if seconds and counted else None


def speed_words(found: Mapping[str, float | None], write: Callable[[float], str]) -> str:
    """Write each known speed, or utilization, with the seconds it is over."""
    return ", ".join(f"{write(value)} {OVER[over]}" for over, value in found.items() if value is not None)
