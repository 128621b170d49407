"""A hang is reported with the late rank and its stack."""

import threading

import pytest

from lmtrain.tracking.hangs import (
    BeatFile,
    HangWatch,
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
