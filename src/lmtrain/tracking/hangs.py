"""A rank's sign of life, events/rank<r>.beat: its activity and the beginning of it, legible after its death too.

It is one line of a fixed length, written in place: an activity costs one call, and the kernel keeps it after kill -9.
"""

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.storage import foreign_json
from lmtrain.storage.durable import open_inside
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.stopwatch import unix_seconds

# In the order of a micro-step; a rank in an earlier one is behind.
ACTIVITIES: Final = (
    *("set-up", "forward", "backward", "optimizer", "between steps", "evaluation", "checkpoint"),
    "reading data",
)
LINE_BYTES: Final = 256


@dataclass(kw_only=True)
class Beat:
    """A rank's newest activity: `step` in progress, counted from 1, micro-steps begun by this process, unix seconds.

    `beat_at` is the newest sign of life of the process itself, `since` the beginning of the activity.
    """

    rank: int
    process: int
    host: str
    since: float
    beat_at: float
    step: int = 0
    micro_steps: int = 0
    activity: str = ACTIVITIES[0]

    @property
    def progress(self) -> tuple[int, int]:
        """Return a number, smaller for a rank behind another."""
        return self.micro_steps, ACTIVITIES.index(self.activity)

    def description(self, *, now: float) -> str:
        """Return the activity in words, with its age at `now` in unix seconds."""
        where = f" of step {self.step}" if self.step else ""
        return f"{self.activity}{where}, for {max(0.0, now - self.since):.1f} s"


class BeatFile:
    """Write a rank's newest `beat`: `activity` at each change, `alive` now and then.

    `first_step` is the first one of this process, 0 before it.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = open_inside(folder, f"events/rank{rank}.beat", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        now = unix_seconds()
        self.beat = Beat(rank=rank, process=os.getpid(), host=socket.gethostname(), since=now, beat_at=now)
        self.first_step = 0
        self._write()

    def activity(self, name: str, *, step: int, begins_micro_step: bool = False) -> None:
        """Begin an activity of a step."""
        beat = self.beat
        self.first_step = self.first_step or step
        beat.activity, beat.step = name, step
        beat.micro_steps += begins_micro_step
        beat.since = beat.beat_at = unix_seconds()
        self._write()

    def alive(self, *, at: float) -> None:
        """Say that the process lives `at` unix seconds; hand the file to the disk, for readers on other nodes."""
        self.beat.beat_at = at
        self._write()
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file, which stays."""
        os.close(self._descriptor)

    def _write(self) -> None:
        one = self.beat
        numbers = f"{one.rank} {one.process} {one.step} {one.micro_steps} {one.since:.3f} {one.beat_at:.3f}"
        os.pwrite(self._descriptor, f"{numbers} {one.host} {one.activity}".ljust(LINE_BYTES).encode(), 0)


def beat_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's beats in a run's folder."""
    return folder / "events" / f"rank{rank}.beat"


def read_beat(folder: Path, rank: int) -> Beat | None:
    """Return a rank's newest beat, None where it has none."""
    try:
        words = foreign_json.read_bytes(beat_path(folder, rank)).decode().split(maxsplit=7)
        (number, process, step, micro_steps), (since, beat_at) = map(int, words[:4]), map(float, words[4:6])
        host, activity = words[6], words[7].strip()
        ACTIVITIES.index(activity)
    except (OSError, ValueError, IndexError):
        return None
    return Beat(
        rank=number, process=process, step=step, micro_steps=micro_steps, activity=activity, since=since,
        beat_at=beat_at, host=host,
    )  # fmt: skip


MOST_NAMED: Final = 8
INNERMOST_FRAMES: Final = 12


def write_stack(folder: Path, rank: int) -> None:
    """Write the innermost frames of this process's main thread, called from another thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    frames = traceback.extract_stack(frame)[: -INNERMOST_FRAMES - 1 : -1] if frame else []
    lines = [f'  File "{each.filename}", line {each.lineno} in {each.name}\n' for each in frames]
    write_text(_stack_path(folder, rank), "".join(lines))


def read_stack(folder: Path, rank: int, *, since: float) -> str | None:
    """Return a rank's stack written after a moment in unix seconds, None where its process wrote none."""
    path = _stack_path(folder, rank)
    try:
        return path.read_text() if path.is_file() and path.stat().st_mtime >= since else None
    except OSError:
        return None


def _stack_path(folder: Path, rank: int) -> Path:
    return folder / "events" / f"rank{rank}.stack"


def hang_report(folder: Path, beats: Sequence[Beat], *, num_ranks: int, now: float) -> str:
    """Describe a job without progress: late ranks first, with their stacks, then the others' activities."""
    quiet = min(now - beat.since for beat in beats)
    least = min(beat.progress for beat in beats)
    late = [beat for beat in beats if beat.progress == least]
    waiting = [beat for beat in beats if beat.progress != least]
    lines = [f"No rank of {num_ranks} has got on for {quiet:.0f} s (hang)."]
    if waiting:
        names = ", ".join(f"rank {beat.rank}" for beat in late[:MOST_NAMED]) + ", ..." * (len(late) > MOST_NAMED)
        lines.append(f"Behind the others: {names}; they wait for it.")
    elif num_ranks > 1:
        lines.append("All are equally far: each waits for the others' messages. Look at the network.")
    for beat in late[:MOST_NAMED]:
        lines.append(f"rank {beat.rank} (process {beat.process} on {beat.host}): {beat.description(now=now)}")
        silent = (
            f"  its process gives no sign of life for {now - beat.beat_at:.0f} s: stopped, or in code that holds "
            f"Python's lock; py-spy dump --pid {beat.process}"
        )
        lines.append((read_stack(folder, beat.rank, since=now - quiet) or silent).rstrip())
    lines += [f"  rank {beat.rank}: {beat.description(now=now)}" for beat in waiting[:MOST_NAMED]]
    return "\n".join(lines) + "\n"


BEATS_OF_GRACE: Final = 3  # without one for so long, a rank's process does not speak
LONG_ACTIVITIES: Final = ("set-up", "evaluation", "checkpoint")  # and the first step, which compiles
TIMES_AS_LONG: Final = 10


class HangWatch:
    """Beat every `every_seconds`; after `report_after_seconds` without progress of any rank, report it once.

    Each rank then writes its stack; the first one whose process lives gathers them a beat later and reports.
    `report_after_seconds` None only beats.
    """

    def __init__(
        self,
        heartbeat: BeatFile,
        *,
        folder: Path,
        num_ranks: int,
        every_seconds: float,
        report_after_seconds: float | None,
        tell: Callable[[str], object] = sys.stderr.write,
        clock: Callable[[], float] = unix_seconds,
    ) -> None:
        self._heartbeat = heartbeat
        self._folder, self._num_ranks = folder, num_ranks
        self._every_seconds, self._report_after = every_seconds, report_after_seconds
        self._tell, self._clock = tell, clock
        self._stuck_since: float | None = None  # of the stall for which this rank wrote its stack
        self._is_reported = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._every_seconds):
            self.look()

    def look(self) -> None:
        """Beat once, and look for a hang."""
        now, beat = self._clock(), self._heartbeat.beat
        self._heartbeat.alive(at=now)
        if self._stuck_since is not None and beat.since != self._stuck_since:
            if self._is_reported:
                self._tell(f"The ranks go on after {now - self._stuck_since:.0f} s.\n")
            self._stuck_since, self._is_reported = None, False
        if not self._is_stuck(beat, now):
            return
        if self._stuck_since is None:
            self._stuck_since = beat.since
            write_stack(self._folder, beat.rank)
        elif not self._is_reported:
            self._report(now)

    def _report(self, now: float) -> None:
        """Report the hang, unless an earlier rank's process lives to, or a busy rank has got on meanwhile."""
        beats = [beat for rank in range(self._num_ranks) if (beat := read_beat(self._folder, rank))]
        own = self._heartbeat.beat.rank
        grace = BEATS_OF_GRACE * self._every_seconds
        if any(beat.rank < own and now - beat.beat_at <= grace for beat in beats):
            return
        if not all(self._is_stuck(beat, now) for beat in beats):
            return
        text = hang_report(self._folder, beats, num_ranks=self._num_ranks, now=now)
        path = self._folder / "events" / f"hang_{time.strftime('%Y%m%d_%H%M%S')}.txt"
        write_text(path, text)
        self._tell(f"{text}This report is {path}.\n")
        self._is_reported = True

    def _is_stuck(self, beat: Beat, now: float) -> bool:
        """Return whether an activity takes longer than it may."""
        if self._report_after is None:
            return False
        is_long = beat.activity in LONG_ACTIVITIES or beat.step == self._heartbeat.first_step
        return now - beat.since >= self._report_after * (TIMES_AS_LONG if is_long else 1)
