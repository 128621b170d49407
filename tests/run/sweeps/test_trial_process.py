import json
from pathlib import Path

import pytest

from lmtrain.errors import DataError
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps import trial_process
from lmtrain.run.sweeps.trial_process import refusal_path, run_trial
from tests.configs import config_of


def test_a_refused_run_leaves_its_words_beside_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trial-0000.json"
    Job(
        config=config_of("logger=none"),
        overrides=["seed=1"],
        name="s/trial-0000",
        root=str(tmp_path),
        pause_after=(1, 4),
    ).save(path)
    started: list[Job] = []

    def start(job: Job, **how: object) -> int:
        started.append(job)
        if len(started) == 1:
            raise DataError("the shards are damaged")
        return 0

    monkeypatch.setattr(trial_process, "start", start)
    assert run_trial(path) == DataError.exit_code
    assert refusal_path(path).read_text() == "the shards are damaged"
    assert run_trial(path) == 0
    assert not refusal_path(path).exists()
    assert [tuple(job.pause_after or ()) for job in started] == [(1, 4), (1, 4)]
    assert json.loads(path.read_text())["overrides"] == ["seed=1"]
