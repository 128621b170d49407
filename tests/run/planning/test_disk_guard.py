from pathlib import Path
from types import SimpleNamespace

import pytest

from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.errors import EnvironmentProblem
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.check_config import check_config
from lmtrain.run.planning import disk_guard
from lmtrain.run.planning.disk_guard import planned_checkpoints, require_disk
from lmtrain.run.planning.setting import planned_setting

PARAMETERS = TrainedParameters(
    num_total=1_000_000, num_hidden_matrix=800_000, num_largest_block=200_000, num_outside_blocks=200_000
)


def test_checkpoints_that_outgrow_the_disk_are_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = check_config(compose_config(["compile=none", "precision=fp32", "optimizer=adamw"]), allowed=[])
    planned = planned_checkpoints(config, planned_setting(config), PARAMETERS)
    assert planned.checkpoint_bytes == 12_000_000  # weights and AdamW's two moments, of four bytes each
    folder = tmp_path / "runs" / "new"

    def require(free: int, *, num_steps: int = 1_000) -> None:
        monkeypatch.setattr(disk_guard.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        require_disk(config, PARAMETERS, folder=folder, num_steps=num_steps)

    require(planned.kept_bytes)
    with pytest.raises(EnvironmentProblem, match=r"free and the run's checkpoints need .* \(12\.0MB each, .*keep_last"):
        require(planned.kept_bytes - 1)
    require(planned.checkpoint_bytes, num_steps=1)  # a run of one step writes one
    saved = folder / "checkpoints" / "step_1" / "weights"
    saved.parent.mkdir(parents=True)
    saved.write_bytes(bytes(1))
    require(planned.kept_bytes - 1)  # an earlier one makes room


def test_a_run_without_checkpoints_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_guard.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    config = check_config(compose_config(["compile=none", "~callbacks.checkpoint"]), allowed=[])
    require_disk(config, PARAMETERS, folder=tmp_path, num_steps=1_000)
