from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.stored_runs.checkpoint_source import find_source
from tests.run.stored_runs.test_checkpoint_source import run_folder


@pytest.mark.parametrize(
    ("typed", "why", "nearest"),
    [
        ("a/checkpoints/step_00000030", "not there: never saved, or removed by .*keep_last", 20),
        ("a/checkpoints/step-7", "not there", 5),
        ("a/step_00000005", "not there", 5),
        ("a/checkpoints", "no checkpoint", 20),
        ("a/checkpoints/step_00000005/state.pt", "no checkpoint", 5),
    ],
)
def test_a_checkpoint_that_is_gone_is_told_with_those_kept(tmp_path: Path, typed: str, why: str, nearest: int) -> None:
    run = run_folder(tmp_path / "a", 5, 20)
    kept = f"{run} has step_00000005, step_00000020"
    fix = f"init_from={run}/checkpoints/step_{nearest:08d}\\."
    with pytest.raises(
        ConfigurationError, match=f"^init_from={tmp_path / typed} is {why}.*; {kept}; nearest valid: {fix}$"
    ):
        find_source(tmp_path / typed, key="init_from")
