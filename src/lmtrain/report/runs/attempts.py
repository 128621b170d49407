"""The time of a run: its events, its attempts, its clock over all of them, and its speeds."""

import contextlib
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, cast

from lmtrain.accounting.observed.time_accounts import (
    COMPUTE,
    GENERATION,
    Attempt,
    StopwatchReading,
    TimeBalance,
    trained_share,
)
from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.visible_text import visible
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.fork import Fork
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.events import PAUSE
from lmtrain.tracking.events import set_up_time
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


def last_row_of(folder: Path, event: str) -> dict[str, Any] | None:
    """Return the first rank's newest event of a name, None without one."""
    rows = [row for row in first_rank_events(folder) if row["name"] == event]
    return rows[-1] if rows else None


def last_step_of(folder: Path, event: str) -> int | None:
    """Return the step of the first rank's newest event of a name, None without one."""
    row = last_row_of(folder, event)
    return None if row is None else int(row["step"])


def read_attempts(folder: Path, *, is_running: bool = False) -> list[Attempt]:
    """Read each attempt's accounts from the first rank's events, oldest first, and those that ended during set-up."""
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
    without_events = _ended_in_set_up(folder, without={each.number for each in attempts})
    return sorted([*attempts, *without_events], key=lambda each: each.number) if without_events else attempts


def _ended_in_set_up(folder: Path, *, without: Collection[int]) -> list[Attempt]:
    """Return the attempts without events: each was stopped or killed during its set-up, or is in it now."""
    numbered = {int(each.name): each for each in RunFolder(folder).attempts()}
    found = {number: set_up_time(each) for number, each in numbered.items() if number not in without}
    return [
        Attempt(number=number, started_at=noted.started_at, ended_at=noted.seen_at, num_devices=noted.num_devices)
        for number, noted in found.items()
        if noted is not None
    ]


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
    return StopwatchReading(step=row["step"], time=row["start"], seconds=seconds, tokens=row.get("tokens"))


@dataclass(frozen=True, kw_only=True)
class OwnSteps:
    """The steps of a run without those of its parent run, and their tokens, each counted once.

    `trained_share` of these tokens have loss.
    """

    last: int = 0
    tokens_per_step: int = 0
    trained_share: float = 1.0
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
    def inherited_tokens(self) -> int:
        """Return the tokens of the parent run."""
        return self.first * self.tokens_per_step

    @property
    def inherited_words(self) -> str:
        """Say how many tokens are the parent run's; empty without a parent."""
        return f"{format_quantity(self.inherited_tokens)} of them of {visible(self.fork.run_words)}" if self.fork else ""


def own_steps(plan: dict[str, Any], attempts: Sequence[Attempt], fork: Fork | None) -> OwnSteps:
    """Return the steps up to the last one of the newest attempt that trained."""
    tokens_per_step = plan.get("batch", {}).get("tokens_per_step", 0)
    first = fork.step if fork else 0
    return OwnSteps(
        fork=fork,
        last=next((each.last_step for each in reversed(attempts) if each.readings), first),
        tokens_per_step=tokens_per_step,
        trained_share=trained_share(attempts, tokens_per_step=tokens_per_step),
    )


def on_the_clock(points: Sequence[Point], attempts: Sequence[Attempt], *, began: float) -> list[float]:
    """Return the seconds of all attempts until each point, without the time between two attempts.

    A point belongs to the last attempt that continued before its step: a resume drops the points after it. Without
    accounts the seconds count from `began`, in unix seconds.
    """
    starts = sorted((each.first_step, number) for number, each in enumerate(attempts) if each.first_step is not None)
    first_steps = [step for step, _ in starts]
    newest = [*accumulate((number for _, number in starts), max)]  # attempt that continued at or before each of these
    earlier = [*accumulate((each.wall_seconds for each in attempts), initial=0.0)]
    found: list[float] = []
    for point in points:
        place = bisect_left(first_steps, point.step)
        number = newest[place - 1] if place else None
        before, since = (0.0, began) if number is None else (earlier[number], attempts[number].started_at)
        found.append(max(0.0, before + point.time - since))
    return found


@dataclass(frozen=True)
class LoggedSpeed:
    """Over all timed intervals without pauses: tokens with loss per second, seconds, the share of tokens with loss."""

    tokens_per_second: float
    seconds: float
    loss_share: float


def logged_speed(folder: Path, points: Sequence[Point], attempts: Sequence[Attempt]) -> LoggedSpeed | None:
    """Return a run's speed by the points of its log; the first step of each attempt is not timed.

    In points without seconds, from an older version, every token has loss.
    """
    forked_at = cast("int", read_json(folder / "fork.json").get("step", 0))
    starts = [forked_at, *(each.first_step for each in attempts if each.first_step)]
    known, in_order = set(starts), sorted(starts)
    counted, tokens, seconds, before = 0.0, 0.0, 0.0, starts[0]
    for point in points:
        speed = point.metrics.get("speed/tokens_per_second")
        if not speed or not point.step:
            continue
        timed, tokens_per_step = point.metrics.get("speed/timed_seconds"), point.tokens / point.step
        place = bisect_left(in_order, point.step)
        since = max([before, *in_order[max(0, place - 1) : place]])  # the last point, or a start after it
        untimed = since in known and timed is not None
        steps, before = point.step - since, point.step
        counted += tokens_per_step * (steps - untimed)
        timed = tokens_per_step * steps / speed if timed is None else timed
        tokens, seconds = tokens + speed * timed, seconds + timed
    return LoggedSpeed(tokens / seconds, seconds, min(1.0, tokens / counted)) if seconds and counted else None


def full_speed(points: Sequence[Point]) -> float | None:
    """Return the log's tokens/s at a utilization of 1 by PaLM's formula, a mean over timed seconds.

    Each attempt measures a CPU's peak again. Without timed seconds, in logs of an older version, the last point counts.
    """
    known = [
        one.metrics for one in points if one.metrics.get("speed/mfu_palm") and "speed/tokens_per_second" in one.metrics
    ]
    if not known:
        return None
    timed = sum(one.get("speed/timed_seconds", 0.0) for one in known)
    full = [one["speed/tokens_per_second"] / one["speed/mfu_palm"] for one in known]
    if not timed:
        return full[-1]
    return sum(one.get("speed/timed_seconds", 0.0) * speed for one, speed in zip(known, full, strict=True)) / timed


def speeds(tokens: int, time: TimeBalance, *, of_steps: float | None) -> dict[str, float | None]:
    """Return tokens/s over computing time, over whole steps by the log, and over the whole clock."""
    computing, clock = time.seconds.get(COMPUTE, 0.0), time.wall_seconds
    return {
        "computing": tokens / computing if computing else None,
        "steps": of_steps,
        "clock": tokens / clock if clock else None,
    }


def speed_words(found: Mapping[str, float | None], write: Callable[[float], str], *, time: TimeBalance) -> str:
    """Write each known speed, or utilization, with the seconds it is over.

    The speed of computing is left out where it is below that of whole steps: the slow first steps of a short run are in
    it alone. Steps that learn from generated answers are timed without the generation.
    """
    steps = found.get("steps") or 0.0
    words = OVER | ({"steps": "over whole steps without generation"} if time.seconds.get(GENERATION) else {})
    known = [(value, words[over]) for over in OVER if (value := found.get(over)) is not None
             and not (over == "computing" and value < steps)]  # fmt: skip
    return ", ".join(f"{write(value)} {over}" for value, over in known)
