"""Other trackers than MLflow, each fed from the log."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking.following import Following
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.tracking.status import Status
from lmtrain.tracking.trackers import PLACE, CsvTracking, TensorboardTracking, WandbTracking
from tests.points import append_point
from tests.tracking.followed_runs import follow_attempt

ENDED = Status("FINISHED", exit_code=0)


class Broken(Following):
    name = "it"

    def open(self, run_folder):
        raise OSError("no space\nleft")


def run_of(path, *steps):
    folder = RunFolder(path)
    folder.create()
    log = RunLog(path)
    for step in steps:
        append_point(log, step, step, {"train/loss": 1.0})
    return folder, log


def test_a_broken_tracker_costs_one_line_and_no_run(tmp_path, capsys):
    folder, _ = run_of(tmp_path / "a", 1)
    tracking = Broken()
    tracking.start(folder)
    assert not tracking.finish(ENDED)
    assert capsys.readouterr().err == (
        "it lacks a part of this run (OSError: no space). metrics.jsonl has every point.\n"
    )


def rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_a_resumed_run_has_one_row_a_step(tmp_path):
    assert follow_attempt(CsvTracking(), tmp_path / "a", {1: 9.0, 2: 8.0, 3: 7.0})
    assert follow_attempt(CsvTracking(), tmp_path / "a", {2: 8.5, 3: 7.5}, resumed_from=1)
    assert rows(tmp_path / "a/metrics.csv") == [
        ["step", "tokens", "time", "train/loss", "validation/bits_per_byte"],
        ["1", "100", "1001.0", "9.0", ""],
        ["2", "200", "1002.5", "8.5", "4.25"],
        ["3", "300", "1003.0", "7.5", ""],
    ]


def test_a_metric_that_comes_late_gets_a_column_and_earlier_rows_stay(tmp_path):
    table = CsvTracking()
    table.open(RunFolder(tmp_path))
    for step, metrics in enumerate([{"a": 1.0}, {"a": 2.0}, {"b": 3.0}, {"a": float("nan"), "b": 4.0}]):
        table.write([Point(0.0, step, step, metrics)])
    table.close(Status("FINISHED"))
    assert [row[3:] for row in rows(tmp_path / "metrics.csv")] == [
        ["a", "b"],
        ["1.0", ""],
        ["2.0", ""],
        ["", "3.0"],
        ["nan", "4.0"],
    ]


def test_tensorboard_reads_each_point_of_a_resumed_run_once(tmp_path):
    assert follow_attempt(TensorboardTracking(), tmp_path / "a", {1: 9.0, 2: 8.0, 3: 7.0})
    assert follow_attempt(TensorboardTracking(), tmp_path / "a", {2: 8.5, 3: 7.5}, resumed_from=1)
    events = EventAccumulator(str(tmp_path / "a/tensorboard"))
    events.Reload()
    keys = events.scalars.Keys()
    assert {key: [(point.step, point.value) for point in events.Scalars(key)] for key in keys} == {
        "train/loss": [(1, 9.0), (2, 8.5), (3, 7.5)],
        "validation/bits_per_byte": [(2, 4.25)],
    }
    assert events.Scalars("train/loss")[0].wall_time == pytest.approx(1001.0)


ROOT = Path(__file__).parents[2]
REAL = ROOT / ".cache" / "trackio"  # by `make trackio`, with the older pillow that it wants
FOLLOWED = """
import sys
from pathlib import Path
from lmtrain.tracking.trackers import TrackioTracking
from tests.tracking.followed_runs import follow_attempt
tracking, run = TrackioTracking(), Path(sys.argv[1])
assert follow_attempt(tracking, run, {1: 9.0, 2: 8.0})
assert follow_attempt(tracking, run, {2: 8.0, 3: 7.0}, resumed_from=1)
"""


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.skipif(not REAL.is_dir(), reason="trackio is not in the lock: make trackio puts it beside the environment")
def test_the_package_itself_has_each_point_of_a_resumed_run_once(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(REAL), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, PLACE: str(tmp_path / "trackio")}
    subprocess.run([sys.executable, "-c", FOLLOWED, str(tmp_path / "a")], env=environment, check=True)
    asked = [sys.executable, str(REAL / "bin" / "trackio"), "get", "metric", "--project", "lmtrain", "--run", "a"]
    told = subprocess.run(
        [*asked, "--metric", "train/loss", "--json"], env=environment, capture_output=True, text=True, check=True
    )
    values = json.loads(told.stdout)["values"]
    assert [(row["step"], row["value"]) for row in values] == [(1, 9.0), (2, 8.0), (3, 7.0)]


def test_a_resumed_run_is_one_run_with_each_point_once_wandb_tracking(tmp_path, monkeypatch):
    import wandb  # seconds

    rows, names, init = [], [], wandb.init

    def recorded(**settings):
        run = init(**settings)
        names.append(run.id)
        log = run.log
        monkeypatch.setattr(run, "log", lambda row: (rows.append(row), log(row)))
        return run

    monkeypatch.setattr(wandb, "init", recorded)
    tracking = WandbTracking(mode="offline")
    assert follow_attempt(tracking, tmp_path / "a", {1: 9.0, 2: 8.0})
    assert follow_attempt(tracking, tmp_path / "a", {2: 8.0, 3: float("nan"), 4: 6.0}, resumed_from=1)
    assert len([*(tmp_path / "a/wandb").glob("offline-*/*.wandb")]) == len(names) == 2
    assert len(set(names)) == 1
    assert rows == [
        {"step": 1, "tokens": 100, "train/loss": 9.0},
        {"step": 2, "tokens": 200, "train/loss": 8.0},
        {"step": 2, "tokens": 200, "validation/bits_per_byte": 4.0},
        {"step": 4, "tokens": 400, "train/loss": 6.0},
        {"step": 4, "tokens": 400, "validation/bits_per_byte": 3.0},
    ]


def test_no_key_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(EnvironmentProblem, match=r"`wandb login` once, set WANDB_API_KEY, or use logger\.mode=offline"):
        WandbTracking()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    WandbTracking()
