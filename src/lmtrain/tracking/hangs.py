"""A rank's sign of life, events/rank<r>.beat: its activity and the beginning of it, legible after its death too.

The file is mapped into memory: an activity costs a write of a few bytes, and the kernel keeps it after kill -9.
"""

import mmap
import os
import socket
import struct
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
    "connection lost",
)
CONNECTION_LOST: Final = ACTIVITIES[-1]
_CODES: Final = {name: code for code, name in enumerate(ACTIVITIES)}
_RECORD: Final = struct.Struct("<4QB2d64s")
_NO_STEP: Final = 0


@dataclass(frozen=True, kw_only=True)
class Beat:
    """A rank's newest activity: `step` in progress, counted from 1, micro-steps begun by this process, unix seconds.

    `beat_at` is the newest sign of life of the process itself, `since` the beginning of the activity.
    """

    rank: int
    process: int
    step: int
    micro_steps: int
    activity: str
    since: float
    beat_at: float
    host: str

    @property
    def progress(self) -> tuple[int, int]:
        """Return a number, smaller for a rank behind another."""
        return self.micro_steps, ACTIVITIES.index(self.activity)

    def told(self, *, now: float) -> str:
        """Return the activity in words, with its age at `now` in unix seconds."""
        where = f" of step {self.step}" if self.step else ""
        return f"{self.activity}{where}, for {max(0.0, now - self.since):.1f} s"


class BeatFile:
    """Write a rank's beats; `activity` at each change, `alive` now and then.

    `first_step` is the first one of this process, 0 before it; `doing` the newest activity.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = open_inside(folder, f"events/rank{rank}.beat", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "w+b") as file:
            file.truncate(_RECORD.size)
            self._memory = mmap.mmap(file.fileno(), _RECORD.size)
        self._rank, self._host = rank, socket.gethostname()
        self._constants, self._host_bytes = (rank, os.getpid()), self._host.encode()[:64]
        self.doing, self._code, self._step, self._micro_steps = ACTIVITIES[0], 0, _NO_STEP, 0
        self._since = self._beat_at = unix_seconds()
        self.first_step = _NO_STEP
        self._write()

    @property
    def beat(self) -> Beat:
        """Return the newest beat."""
        return Beat(
            rank=self._rank, process=self._constants[1], step=self._step, micro_steps=self._micro_steps,
            activity=self.doing, since=self._since, beat_at=self._beat_at, host=self._host,
        )  # fmt: skip

    def activity(self, name: str, *, step: int, begins_micro_step: bool = False) -> None:
        """Begin an activity of a step; five times a step, so that a beat is put together for its readers alone."""
        self.first_step = self.first_step or step
        self.doing, self._code, self._step = name, _CODES[name], step
        self._micro_steps += begins_micro_step
        self._since = self._beat_at = unix_seconds()
        self._write()

    def alive(self, *, at: float) -> None:
        """Say that the process lives `at` unix seconds; hand the file to the disk, for readers on other nodes."""
        self._beat_at = at
        self._write()
        self._memory.flush()

    def close(self) -> None:
        """Give the memory back; the file stays."""
        self._memory.close()

    def _write(self) -> None:
        numbers = (self._step, self._micro_steps, self._code, self._since, self._beat_at)
        _RECORD.pack_into(self._memory, 0, *self._constants, *numbers, self._host_bytes)


def beat_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's beats in a run's folder."""
    return folder / "events" / f"rank{rank}.beat"


def read_beat(folder: Path, rank: int) -> Beat | None:
    """Return a rank's newest beat, None where it has none."""
    try:
        content = foreign_json.read_bytes(beat_path(folder, rank))
        number, process, step, micro_steps, code, since, beat_at, host = _RECORD.unpack(content)
        activity = ACTIVITIES[code]
    except (OSError, ValueError, struct.error, IndexError):
        return None
    return Beat(
        rank=number, process=process, step=step, micro_steps=micro_steps, activity=activity, since=since,
        beat_at=beat_at, host=host.rstrip(b"\0").decode(errors="replace"),
    )  # fmt: skip


def read_beats(folder: Path, num_ranks: int) -> list[Beat]:
    """Return the newest beat of each rank, where there is one."""
    return [beat for rank in range(num_ranks) if (beat := read_beat(folder, rank))]


def ended_ranks(beats: Sequence[Beat], *, besides: int) -> list[Beat]:
    """Return the ranks of this host whose process is gone, `besides` the reader's."""
    host = socket.gethostname()
    return [beat for beat in beats if beat.rank != besides and beat.host == host and not _lives(beat.process)]


def silent_ranks(beats: Sequence[Beat], *, besides: int) -> list[Beat]:
    """Return the ranks of other hosts that have not reported a lost connection: it broke at one of them."""
    host = socket.gethostname()
    return [beat for beat in beats if beat.rank != besides and beat.host != host and beat.activity != CONNECTION_LOST]


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not Path("/proc/self").exists()


def late_beats(beats: Sequence[Beat]) -> list[Beat]:
    """Return the beats of the ranks behind all others; none where all are equally far."""
    least = min((beat.progress for beat in beats), default=(0, 0))
    late = [beat for beat in beats if beat.progress == least]
    return late if len(late) < len(beats) else []


MOST_TOLD: Final = 8
INNERMOST_FRAMES: Final = 12


def stack_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's stack at the newest hang."""
    return folder / "events" / f"rank{rank}.stack"


def write_stack(folder: Path, rank: int) -> None:
    """Write the innermost frames of this process's main thread, called from another thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    frames = traceback.extract_stack(frame)[: -INNERMOST_FRAMES - 1 : -1] if frame else []
    lines = [f'  File "{each.filename}", line {each.lineno} in {each.name}\n' for each in frames]
    write_text(stack_path(folder, rank), "".join(lines))


def read_stack(folder: Path, rank: int, *, since: float) -> str | None:
    """Return a rank's stack written after a moment in unix seconds, None where its process wrote none."""
    path = stack_path(folder, rank)
    try:
        return path.read_text() if path.is_file() and path.stat().st_mtime >= since else None
    except OSError:
        return None


def hang_report(folder: Path, beats: Sequence[Beat], *, num_ranks: int, now: float, stacks_since: float) -> str:
    """Describe a job without progress: late ranks first, with their stacks, then the others' activities."""
    late = late_beats(beats)
    quiet = min((now - beat.since for beat in beats), default=0.0)
    lines = [f"No rank of {num_ranks} has got on for {quiet:.0f} s (hang)."]
    if late:
        behind = ", ".join(f"rank {beat.rank}" for beat in late[:MOST_TOLD]) + (
            ", ..." if len(late) > MOST_TOLD else ""
        )
        lines.append(f"Behind the others: {behind}; they wait for it.")
    elif num_ranks > 1:
        lines.append("All are equally far: each waits for the others' messages. Look at the network.")
    for beat in (late or list(beats))[:MOST_TOLD]:
        lines += _of_rank(folder, beat, now=now, stacks_since=stacks_since)
    waiting = [beat for beat in beats if beat not in late] if late else []
    lines += [f"  rank {beat.rank}: {beat.told(now=now)}" for beat in waiting[:MOST_TOLD]]
    return "\n".join(lines) + "\n"


def _of_rank(folder: Path, beat: Beat, *, now: float, stacks_since: float) -> list[str]:
    head = f"rank {beat.rank} (process {beat.process} on {beat.host}): {beat.told(now=now)}"
    stack = read_stack(folder, beat.rank, since=stacks_since)
    if stack is None:
        silent = f"  its process gives no sign of life for {now - beat.beat_at:.0f} s"
        return [head, f"{silent}: stopped, or in code that holds Python's lock; py-spy dump --pid {beat.process}"]
    return [head, *stack.rstrip().splitlines()]


def write_report(folder: Path, text: str) -> Path:
    """Keep a report in the run's folder."""
    path = folder / "events" / f"hang_{time.strftime('%Y%m%d_%H%M%S')}.txt"
    write_text(path, text)
    return path


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
        self._stack_at: float | None = None  # this rank wrote its stack of the present stall
        self._stuck_at: Beat | None = None
        self._told = False
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
        now = self._clock()
        self._heartbeat.alive(at=now)
        beat = self._heartbeat.beat
        if self._stuck_at is not None and beat.since != self._stuck_at.since:
            self._go_on(now)
        if self._report_after is None or now - beat.since < self._patience(beat):
            return
        if self._stack_at is None:
            self._stack_at, self._stuck_at = now, beat
            write_stack(self._folder, beat.rank)
        elif not self._told and self._is_first_alive(now):
            self._report(now)

    def _report(self, now: float) -> None:
        """Report the hang, unless a rank has made progress meanwhile: a busy rank is not a hang."""
        assert self._stack_at is not None
        beats = read_beats(self._folder, self._num_ranks)
        if any(now - beat.since < self._patience(beat) for beat in beats):
            return
        stacks_since = now - min(now - beat.since for beat in beats)
        text = hang_report(self._folder, beats, num_ranks=self._num_ranks, now=now, stacks_since=stacks_since)
        path = write_report(self._folder, text)
        self._tell(f"{text}This report is {path}.\n")
        self._told = True

    def _patience(self, beat: Beat) -> float:
        """Return the longest allowed time of an activity, in seconds."""
        assert self._report_after is not None
        is_long = beat.activity in LONG_ACTIVITIES or beat.step == self._heartbeat.first_step
        return self._report_after * (TIMES_AS_LONG if is_long else 1)

    def _go_on(self, now: float) -> None:
        assert self._stuck_at is not None
        if self._told:
            self._tell(f"The ranks go on after {now - self._stuck_at.since:.0f} s.\n")
        self._stuck_at, self._stack_at, self._told = None, None, False

    def _is_first_alive(self, now: float) -> bool:
        """Return whether no earlier rank's process lives to report."""
        for rank in range(self._heartbeat.beat.rank):
            beat = read_beat(self._folder, rank)
            if beat is not None and now - beat.beat_at <= BEATS_OF_GRACE * self._every_seconds:
                return False
        return True
