from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.accounting.observed.time_accounts import Spent
from lmtrain.composition.execution import planned_start as module
from lmtrain.composition.execution.planned_start import planned_start
from lmtrain.composition.planning.plan import FROM_THE_START
from lmtrain.composition.stored_runs.identity import identity_of_settings
from lmtrain.composition.stored_runs.job import Job
from lmtrain.errors import ConfigurationError
from lmtrain.storage.hashed_folder import write_atomically
from tests.configs import config_of


def test_a_start_is_read_and_not_verified_with_the_time_of_its_own_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(config=config_of(), overrides=[], name="cat", root=str(tmp_path))
    assert planned_start(job) is FROM_THE_START
    facts = {"step": 9, "tokens": 90, "identity": identity_of_settings(job.config)}
    saved = tmp_path / "cat" / "checkpoints" / "step_00000009"
    write_atomically(saved, facts=facts, write=lambda aside: (aside / "state.pt").write_bytes(b"terabytes"))
    (saved / "state.pt").unlink()
    monkeypatch.setattr(module, "time_of_earlier_attempts", lambda _: Spent(seconds=30.0, device_seconds=60.0))
    done = planned_start(job).done
    assert (done.steps, done.spent("hours"), done.spent("usd")) == (9, 30.0, 60.0)
    other = Job(config=config_of("optimizer=adamw"), overrides=["optimizer=adamw"], name="cat", root=str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"optimizer._target_=.*there .*or go on otherwise with 'run.allow_ch"):
        planned_start(other)
    allowed = config_of("optimizer=adamw", "run.allow_changes=[optimizer._target_]")
    assert planned_start(replace(other, config=allowed)).done == done
