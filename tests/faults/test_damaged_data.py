"""A run on damaged data ends with exit code 4 before it writes a checkpoint."""

from pathlib import Path

import numpy as np
import pytest

from tests import tiny

RUN = ["budget.steps=3", "callbacks.checkpoint.every_steps=2", "run.name=a"]


@pytest.mark.faults
@pytest.mark.parametrize(("id_there", "message"), [(None, "is damaged: its sha256"), (65_000, "holds id 65,000")])
def test_damaged_data_ends_the_run_before_a_checkpoint(id_there: int | None, message: str, tmp_path: Path) -> None:
    prepared = tiny.train(tmp_path, "budget.steps=1", "run.name=first")
    assert prepared.returncode == 0, prepared.stderr
    (shard,) = tmp_path.glob("data/*/train_00000.ds")
    ids = np.fromfile(shard, dtype="<u2")
    if id_there is None:
        ids[0] ^= 1
    else:
        ids[:] = id_there
    ids.tofile(shard)
    damaged = tiny.train(tmp_path, *RUN)
    assert damaged.returncode == 4, damaged.stderr
    assert message in damaged.stderr
    assert not any((tmp_path / "runs/a/checkpoints").glob("step_*"))
