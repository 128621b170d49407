"""A run that is killed and goes on is one MLflow run with one curve, each point once."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.faults.test_resume import killed

STEPS = 14


def tracked_runs(root: Path) -> list[Any]:
    """Return the MLflow runs of a folder of runs, without those of sweeps."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{root}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments))


def curve(root: Path, run_id: str, key: str) -> list[tuple[int, float]]:
    """Return the points of one metric in the order of their steps."""
    from mlflow.tracking import MlflowClient

    history = MlflowClient(f"sqlite:///{root}/mlflow.db").get_metric_history(run_id, key)
    return sorted((point.step, point.value) for point in history)


@pytest.mark.faults
@pytest.mark.slow
def test_a_killed_run_goes_on_as_the_same_mlflow_run_with_no_point_twice(tmp_path: Path) -> None:
    words = [f"budget.steps={STEPS}", "callbacks.checkpoint.every_steps=4", "run.name=a", "logger=mlflow"]
    assert tiny.train(tmp_path, *words, *killed(10)).returncode == -9
    again = tiny.train(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    root = tmp_path / "runs"
    runs = tracked_runs(root)
    assert [run.info.status for run in runs] == ["FINISHED"]
    expected = sorted(tiny.losses(root / "a").items())
    assert curve(root, runs[0].info.run_id, "train/loss") == expected
    status = json.loads((root / "a/status.json").read_text())
    assert (status["status"], status["step"], status["mlflow_run_id"]) == ("FINISHED", STEPS, runs[0].info.run_id)
    assert len(list((root / "a/attempts").iterdir())) == 2
    for name in ("config.yaml", "overrides.txt", "git.json", "versions.json"):
        assert (root / "a/attempts/2" / name).is_file()
