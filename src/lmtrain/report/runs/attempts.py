"""The attempts of a run, from its first rank's events, and its own steps among those of its model."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.time_accounts import Attempt, StopwatchReading, trained_share
from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.runs.event_rows import event_rows
from lmtrain.report.visible_text import visible
from lmtrain.tracking.fork import Fork
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.timekeeping.events import PAUSE
from lmtrain.tracking.timekeeping.set_up_time import set_up_time
from lmtrain.tracking.timekeeping.stopwatch import KINDS

READING: Final = "ledger"


@dataclass(frozen=True, kw_only=True)
class OwnSteps:
    """The steps of a run after those of the run it left, and their tokens, each counted once.

    `trained_share` of these tokens have loss.
    """

    last: int = 0
    tokens_per_step: int = 0
    trained_share: float = 1.0
    fork: Fork | None = None

    @property
    def first(self) -> int:
        """Return the steps done by the other run, 0 without one."""
        return self.fork.step if self.fork else 0

    @property
    def num(self) -> int:
        """Return their number."""
        return self.last - self.first

    @property
    def all_tokens(self) -> int:
        """Return their tokens, with and without loss."""
        return self.num * self.tokens_per_step

    @property
    def tokens(self) -> int:
        """Return their tokens with loss."""
        return round(self.all_tokens * self.trained_share)

    @property
    def inherited_tokens(self) -> int:
        """Return the other run's tokens."""
        return self.first * self.tokens_per_step

    @property
    def inherited_words(self) -> str:
        """Say how many of all tokens are of the run it left; empty where it left none."""
        return (
            f"{format_quantity(self.inherited_tokens)} of them of {visible(self.fork.run_words)}" if self.fork else ""
        )


def own_steps(plan: dict[str, Any], attempts: Sequence[Attempt], fork: Fork | None) -> OwnSteps:
    """Return the steps up to the last one of the newest attempt that came to train."""
    tokens_per_step = plan.get("batch", {}).get("tokens_per_step", 0)
    begun = fork.step if fork else 0
    return OwnSteps(
        fork=fork,
        last=next((each.last_step for each in reversed(attempts) if each.readings), begun),
        tokens_per_step=tokens_per_step,
        trained_share=trained_share(attempts, tokens_per_step=tokens_per_step),
    )


def read_attempts(folder: Path, *, is_running: bool = False) -> list[Attempt]:
    """Read each attempt's accounts from the first rank's events, oldest first, and those ended in their set-up."""
    attempts: list[Attempt] = []
    rows: list[dict[str, Any]] = []
    path = folder / "events" / "rank0.jsonl"
    for row in event_rows(path):
        if row["name"] == "attempt" and rows:
            attempts.append(_attempt(rows))
            rows = []
        rows.append(row)
    if rows:
        # Silence counts from the file's last change: the process's own clock in the rows may differ from ours.
        quiet_seconds = max(0.0, time.time() - path.stat().st_mtime) if is_running else 0.0
        attempts.append(_attempt(rows, quiet_seconds=quiet_seconds))
    ended_early = _ended_in_set_up(folder, without={each.number for each in attempts})
    return sorted([*attempts, *ended_early], key=lambda each: each.number) if ended_early else attempts


def _ended_in_set_up(folder: Path, *, without: Collection[int]) -> list[Attempt]:
    """Return the attempts that no event is of: each was stopped or killed before, or is at it."""
    numbered = {int(each.name): each for each in RunFolder(folder).attempts()}
    found = {number: set_up_time(each) for number, each in numbered.items() if number not in without}
    return [
        Attempt(number=number, started_at=noted.started_at, ended_at=noted.seen_at, num_devices=noted.num_devices)
        for number, noted in found.items()
        if noted is not None
    ]


def _attempt(rows: list[dict[str, Any]], *, quiet_seconds: float = 0.0) -> Attempt:
    readings = tuple(_reading(row) for row in rows if row["name"] == READING)
    heard = max(row["start"] + row.get("seconds", 0.0) for row in rows)
    return Attempt(
        number=int(rows[0].get("attempt", 1)),
        started_at=float(rows[0].get("started_at", rows[0]["start"])),
        ended_at=heard + quiet_seconds,
        readings=readings,
        pause=_pause(rows),
        num_devices=found if isinstance(found := rows[0].get("num_devices"), int) else None,
    )


def _pause(rows: list[dict[str, Any]]) -> tuple[str, float] | None:
    """Return the pause under way at the end of the rows: its span is not there yet."""
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
