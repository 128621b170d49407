from pathlib import Path

import pytest

from lmtrain.accounting.observed.time_accounts import Spent
from lmtrain.composition.execution import planned_start as module
from lmtrain.composition.execution.planned_start import planned_start
from lmtrain.composition.planning.plan import FROM_THE_START
from lmtrain.composition.stored_runs.job import Job
from lmtrain.storage.hashed_folder import write_atomically
from tests.configs import config_with


def test_a_start_is_read_and_not_verified_with_the_time_of_its_own_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(config=config_with(), overrides=[], name="cat", root=str(tmp_path))
    assert planned_start(job) is FROM_THE_START
    facts = {"step": 9, "tokens": 90, "identity": {}}
    saved = tmp_path / "cat" / "checkpoints" / "step_00000009"
    write_atomically(saved, facts=facts, write=lambda aside: (aside / "state.pt").write_bytes(b"terabytes"))
    (saved / "state.pt").unlink()
    monkeypatch.setattr(module, "time_of_earlier_attempts", lambda _: Spent(seconds=30.0, device_seconds=60.0))
    done = planned_start(job).done
    assert (done.steps, done.spent("hours"), done.spent("usd")) == (9, 30.0, 60.0)
