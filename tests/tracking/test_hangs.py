"""A hang is reported with the late rank and its stack."""

import os
import subprocess
import threading

import pytest

from lmtrain.tracking.hangs import (
    BeatFile,
    HangWatch,
    ended_ranks,
    late_beats,
    read_beat,
    read_beats,
    read_stack,
    write_stack,
)
from lmtrain.tracking.stopwatch import unix_seconds


def test_a_stack_is_the_main_thread_s_written_from_another_one(tmp_path):
    (tmp_path / "events").mkdir()
    writer = threading.Thread(target=write_stack, args=(tmp_path, 0))
    writer.start()
    writer.join()
    stack = read_stack(tmp_path, 0, since=0.0)
    assert stack is not None
    assert "test_hangs.py" in stack
    assert "write_stack" not in stack


class Clock:
    """A clock ahead of the machine's by `ahead` seconds."""

    ahead = 0.0

    def __call__(self):
        return unix_seconds() + self.ahead


@pytest.mark.faults
def test_a_hang_is_told_once_by_the_first_living_rank_with_the_late_one_s_stack(tmp_path):
    clock, told = Clock(), {0: [], 1: []}
    files = [BeatFile(tmp_path, rank) for rank in (0, 1)]
    watches = [
        HangWatch(
            file,
            folder=tmp_path,
            num_ranks=2,
            every_seconds=5,
            report_after_seconds=60,
            tell=told[rank].append,
            clock=clock,
        )
        for rank, file in enumerate(files)
    ]

    def look(ahead):
        clock.ahead = ahead
        for watch in watches:
            watch.look()

    for step in (1, 2):
        for file in files:
            file.activity("forward", step=step, begins_micro_step=True)
        look(0)
    files[0].activity("backward", step=2)
    look(59)
    look(61)
    assert told == {0: [], 1: []}, "the stacks are written first"
    for ahead in (62, 63):
        look(ahead)
    assert told[1] == []
    (report,) = told[0]
    assert "Behind the others: rank 1; they wait for it." in report
    assert "forward of step 2, for" in report
    assert "test_hangs.py" in report.split("rank 1 (process")[1].split("rank 0:")[0], "its stack"
    assert "  rank 0: backward of step 2" in report
    assert len(list((tmp_path / "events").glob("hang_*.txt"))) == 1
    for file in files:
        file.activity("optimizer", step=2)
    look(0)
    assert told[0][1:] == [told[0][1]]
    assert told[0][1].startswith("The ranks go on after")


def test_a_beat_is_read_as_it_was_written_and_a_torn_or_missing_file_is_none(tmp_path):
    with_micro_step = BeatFile(tmp_path, 3)
    with_micro_step.activity("backward", step=12, begins_micro_step=True)
    assert read_beat(tmp_path, 3) == with_micro_step.beat
    assert with_micro_step.beat.told(now=with_micro_step.beat.since + 2) == "backward of step 12, for 2.0 s"
    (tmp_path / "events/rank4.beat").write_bytes(b"torn")
    assert [read_beat(tmp_path, rank) for rank in (4, 5)] == [None, None]


def test_the_rank_in_the_earlier_activity_of_a_micro_step_is_late_and_nobody_where_all_are_equal(tmp_path):
    files = [BeatFile(tmp_path, rank) for rank in range(3)]
    for file in files:
        file.activity("forward", step=2, begins_micro_step=True)
    assert late_beats(read_beats(tmp_path, 3)) == []
    for rank, activity in ((0, "backward"), (2, "optimizer")):
        files[rank].activity(activity, step=2)
    assert [beat.rank for beat in late_beats(read_beats(tmp_path, 3))] == [1]


def test_ranks_whose_process_is_gone_are_told_from_the_living(tmp_path):
    beats = [BeatFile(tmp_path, rank).beat for rank in range(2)]
    ended = subprocess.Popen(["true"])
    ended.wait()
    gone = type(beats[1])(**{**vars(beats[1]), "process": ended.pid})
    assert ended_ranks([beats[0], gone], besides=5) == [gone]
    assert beats[0].process == os.getpid()
