from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.accounting.budgets import Horizon
from lmtrain.accounting.observed.time_accounts import Spent
from lmtrain.data.shards import open_dataset
from lmtrain.data.synthetic import synthetic
from lmtrain.errors import ConfigurationError
from lmtrain.run.execution.planned_start import planned_start
from lmtrain.run.planning.plan import FROM_THE_START
from lmtrain.run.stored_runs import resume
from lmtrain.run.stored_runs.identity import identity_of_settings
from lmtrain.run.stored_runs.job import Job
from lmtrain.storage.hashed_folder import write_atomically
from tests.configs import config_of

HORIZON = Horizon(steps=20, tokens=200, flops=200, limited_by="steps")


def saved(job: Job, step: int, **more: str) -> Path:
    folder = job.folder / "checkpoints" / f"step_{step:08d}"
    facts = {"step": step, "tokens": 10 * step, "identity": {**identity_of_settings(job.config), **more}}
    write_atomically(folder, facts=facts, write=lambda aside: (aside / "state.pt").write_bytes(b"terabytes"))
    (folder / "state.pt").unlink()
    return folder


def test_a_start_is_read_and_not_verified_with_the_time_of_its_own_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(config=config_of(f"run.cache={tmp_path}"), overrides=[], name="cat", root=str(tmp_path))
    assert planned_start(job) is FROM_THE_START
    saved(job, 9)
    monkeypatch.setattr(resume, "spent", lambda _, num_devices: Spent(seconds=30.0, device_seconds=60.0))
    done = planned_start(job).done
    assert (done.steps, done.spent("hours"), done.spent("usd")) == (9, 30.0, 60.0)
    other = Job(
        config=config_of("optimizer=adamw", f"run.cache={tmp_path}"),
        overrides=["optimizer=adamw"],
        name="cat",
        root=str(tmp_path),
    )
    with pytest.raises(ConfigurationError, match=r"optimizer._target_=.*there .*allow them by 'run.allow_changes="):
        planned_start(other)
    allowed = config_of("optimizer=adamw", "run.allow_changes=[optimizer._target_]", f"run.cache={tmp_path}")
    assert planned_start(replace(other, config=allowed)).done == done


def test_other_data_is_refused_where_it_is_known_and_else_awaited(tmp_path: Path) -> None:
    folder = synthetic(root=str(tmp_path), vocab_size=257, num_tokens=600)
    words = ["data=shards", f"data.folder.path={folder}"]
    job = Job(config=config_of(*words), overrides=words, name="cat", root=str(tmp_path))
    manifest = open_dataset(folder).manifest
    there = {"data.fingerprint": manifest.fingerprint, "tokenizer": manifest.tokenizer_fingerprint}
    saved(job, 9, **there)
    assert not (planned_start(job).left(HORIZON) or "").endswith("opened")
    unknown = replace(job, config=config_of(f"run.cache={tmp_path}"))
    assert (planned_start(unknown).left(HORIZON) or "").endswith("seen once it is opened")
    saved(job, 10, **{**there, "data.fingerprint": "a" * 64})
    with pytest.raises(ConfigurationError, match=r"belongs to another run: data.fingerprint=\w+, there aaaaaaaaaaaa\."):
        planned_start(job)
