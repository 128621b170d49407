import threading

from lmtrain.tracking import following
from lmtrain.tracking.following import FollowingHandle
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog
from lmtrain.tracking.status import Status, read_status
from tests.points import append_point

ENDED = Status("FINISHED", exit_code=0)


class Written:
    """A tracker that remembers."""

    def __init__(self):
        self.steps, self.names, self.closed_with = [], [], None

    def write(self, points):
        self.steps += [point.step for point in points]
        self.names += [name for point in points for name in point.metrics]

    def close(self, status):
        self.closed_with = status


class Broken(Written):
    def write(self, points):
        raise OSError("no space\nleft")


def run_of(path, *steps):
    folder = RunFolder(path)
    folder.create()
    log = RunLog(path)
    for step in steps:
        append_point(log, step, step, {"train/loss": 1.0})
    return folder, log


def test_every_point_from_the_first_one_to_the_last_is_handed_over(tmp_path):
    writer = Written()
    folder, log = run_of(tmp_path / "a", 1, 2)
    handle = FollowingHandle(folder, "it", lambda: writer)
    running = read_status(folder.path)
    append_point(log, 3, 3, {"validation/num_bytes": 9.0})
    append_point(log, 4, 4, {"validation/num_bytes": 5.0})
    tracked = handle.finish(ENDED)
    ended = read_status(folder.path)
    assert running is not None
    assert ended is not None
    assert (running.status, ended.status) == ("RUNNING", "FINISHED")
    assert (writer.steps, writer.closed_with) == ([1, 2, 3, 4], ENDED)
    assert writer.names[2:] == ["validation/num_bytes", "validation_of_5_bytes/num_bytes"]
    assert tracked.is_complete


def test_a_broken_tracker_costs_one_line_and_no_run(tmp_path, capsys):
    folder, _ = run_of(tmp_path / "a", 1)
    tracked = FollowingHandle(folder, "it", Broken).finish(ENDED)
    assert not tracked.is_complete
    assert capsys.readouterr().err == (
        "it lacks a part of this run (OSError: no space). metrics.jsonl has every point.\n"
    )


def test_a_stop_does_not_wait_for_a_tracker_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "AT_ONCE_SECONDS", 0.0)
    folder, _ = run_of(tmp_path / "a", 1)
    may_go_on = threading.Event()

    def hang():
        may_go_on.wait()
        return Written()

    tracked = FollowingHandle(folder, "it", hang).finish(Status("KILLED", exit_code=143), at_once=True)
    may_go_on.set()
    assert not tracked.is_complete
