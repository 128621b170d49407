"""A thread beside training: it says that the process lives, and tells of a job without progress."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lmtrain.tracking.hangs.hang_report import hang_report, write_report, write_stack
from lmtrain.tracking.hangs.heartbeat import Beat, BeatFile, read_beat, read_beats
from lmtrain.tracking.timekeeping.clock import unix_seconds

BEATS_OF_GRACE: Final = 3  # without one for so long, a rank's process does not speak
LONG_ACTIVITIES: Final = ("set-up", "evaluation", "checkpoint")  # and the first step, which compiles
TIMES_AS_LONG: Final = 10


class HangWatch:
    """Beat every `every_seconds`; after `report_after_seconds` without progress of any rank, report it once.

    Each rank then writes its stack; the first one whose process lives gathers them a beat later and tells.
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
        """Tell of the hang, unless a rank has got on meanwhile: one at work holds up the others, and is no hang."""
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
        """Tell whether no earlier rank's process lives to report."""
        for rank in range(self._heartbeat.beat.rank):
            beat = read_beat(self._folder, rank)
            if beat is not None and now - beat.beat_at <= BEATS_OF_GRACE * self._every_seconds:
                return False
        return True
