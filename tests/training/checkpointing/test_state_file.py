import pytest
import torch

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.hashed_folder import damage, read_manifest
from lmtrain.training.checkpointing.checkpoints import STATE, WriteState


def test_a_state_is_written_whole_with_its_facts_and_its_bytes_are_told(tmp_path):
    path = tmp_path / "step_00000003"
    num_bytes = WriteState({"state_dict": torch.ones(3), "lmtrain": {"step": 3}}, path)()
    assert num_bytes == (path / STATE).stat().st_size
    assert damage(path) is None
    assert read_manifest(path)["step"] == 3


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match="step_00000003 could not be written"):
        WriteState({}, tmp_path / "file" / "step_00000003")()
