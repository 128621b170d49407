import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking import trackers as tracker_packages
from lmtrain.tracking.trackers import PLACE, TrackioTracking
from tests.tracking.followed_runs import follow_attempt

ROOT = Path(__file__).parents[2]
REAL = ROOT / ".cache" / "trackio"  # by `make trackio`, with the older pillow that it wants
FOLLOWED = """
import sys
from pathlib import Path
from lmtrain.tracking.trackers import TrackioTracking
from tests.tracking.followed_runs import follow_attempt
tracking, run = TrackioTracking(), Path(sys.argv[1])
assert follow_attempt(tracking, run, {1: 9.0, 2: 8.0}).is_complete
assert follow_attempt(tracking, run, {2: 8.0, 3: 7.0}, resumed_from=1).is_complete
"""


class StandIn(SimpleNamespace):
    """The calls of the package that is not in the lock."""

    def __init__(self) -> None:
        super().__init__(rows=[], begun=[])

    def init(self, **settings: Any) -> "StandIn":
        self.begun.append(settings)
        return self

    def log(self, metrics: dict[str, float], *, step: int) -> None:
        self.rows.append((step, metrics))

    def finish(self) -> None:
        self.rows.append("finished")


def test_a_resumed_run_is_one_run_with_each_point_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    monkeypatch.setattr(tracker_packages.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv(PLACE, str(tmp_path / "trackio"))
    tracking = TrackioTracking()
    assert follow_attempt(tracking, tmp_path / "a", {1: 9.0, 2: 8.0}).is_complete
    assert follow_attempt(tracking, tmp_path / "a", {2: 8.0, 3: float("nan")}, resumed_from=1).is_complete
    assert [settings["resume"] for settings in stand_in.begun] == ["allow", "allow"]
    assert len({settings["name"] for settings in stand_in.begun}) == 1
    losses = [(row[0], row[1]["train/loss"]) for row in stand_in.rows if row != "finished" and "train/loss" in row[1]]
    assert losses == [(1, 9.0), (2, 8.0)]
    assert stand_in.rows.count("finished") == 2


@pytest.mark.slow
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


def test_a_missing_package_and_no_project_are_refused_at_once() -> None:
    with pytest.raises(
        EnvironmentProblem, match=r"logger=trackio needs the package trackio: .*pip install .*'trackio<"
    ):
        TrackioTracking()
    with pytest.raises(ConfigurationError, match=r"logger\.project='' is empty"):
        TrackioTracking(project="")
