"""A rank's sign of life, events/rank<r>.beat: its activity and the beginning of it, legible after its death too.

The file is mapped into memory: an activity costs a write of a few bytes, and the kernel keeps it after kill -9.
"""

import mmap
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.storage import foreign_json
from lmtrain.tracking.timekeeping.clock import unix_seconds

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
        path = beat_path(folder, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as file:
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
    """Return the ranks of other hosts that have not told of a lost connection: it broke at one of them."""
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
