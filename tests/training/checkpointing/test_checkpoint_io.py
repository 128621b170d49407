import os
import resource

import pytest
import torch

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.hashed_folder import damage, write_atomically
from lmtrain.training.checkpointing.checkpoint_io import STATE, AtomicCheckpointIO

FACTS = {"step": 3, "tokens": 96, "identity": {"seed": 1}}


@pytest.fixture
def path(tmp_path):
    """A saved checkpoint's folder."""
    path = tmp_path / "checkpoints" / "step_00000003"
    state = {"weight": torch.arange(6.0).reshape(2, 3), "step": torch.tensor(3)}
    AtomicCheckpointIO().save_checkpoint({"lmtrain": FACTS, "global_step": 3, "state_dict": state}, path)
    return path


def test_a_checkpoint_comes_back_as_it_was_saved(path):
    loaded = AtomicCheckpointIO().load_checkpoint(path)
    assert loaded["global_step"] == 3
    assert torch.equal(loaded["state_dict"]["weight"], torch.arange(6.0).reshape(2, 3))


def test_a_flipped_bit_that_torch_would_load_is_refused(path):
    content = bytearray((path / STATE).read_bytes())
    content[content.index(torch.tensor(4.0).numpy().tobytes())] ^= 1
    (path / STATE).write_bytes(content)
    torch.load(path / STATE, weights_only=True)
    with pytest.raises(EnvironmentProblem, match=r"step_00000003 is damaged: state\.pt has changed"):
        AtomicCheckpointIO().load_checkpoint(path)


class Evil:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


def test_nothing_in_a_checkpoint_can_run_code(tmp_path):
    canary, path = tmp_path / "canary", tmp_path / "step_00000001"
    write_atomically(path, facts={}, write=lambda folder: torch.save({"x": Evil(canary)}, folder / STATE))
    with pytest.raises(EnvironmentProblem, match="holds more than tensors and plain values"):
        AtomicCheckpointIO().load_checkpoint(path, weights_only=False)
    assert not canary.exists()


@pytest.mark.faults
def test_a_full_disk_is_told_and_keeps_the_older_checkpoint(path):
    newer, limits = path.with_name("step_00000004"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(EnvironmentProblem, match="step_00000004 could not be written"):
            AtomicCheckpointIO().save_checkpoint({"state_dict": torch.zeros(1 << 16)}, newer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [folder.name for folder in path.parent.iterdir()] == [path.name]
    assert damage(path) is None
