"""Checkpoints on disk: whole or absent, verified, only weights, which are kept."""

import os

import pytest
import torch
import torch.distributed.checkpoint as sharded_checkpoint
from torch import nn

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage.checkpoint_layout import SHARDED
from lmtrain.storage.hashed_folder import damage, write_atomically
from lmtrain.training.checkpointing.checkpoint_io import STATE, AtomicCheckpointIO
from lmtrain.training.checkpointing.checkpoints import (
    Retention,
    list_checkpoints,
    newest_whole,
    require_same_identity,
)
from lmtrain.training.checkpointing.weights import load_weights
from tests.full_disk import files_of_at_most

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
    newer = path.with_name("step_00000004")
    with files_of_at_most(1 << 16), pytest.raises(EnvironmentProblem, match="step_00000004 could not be written"):
        AtomicCheckpointIO().save_checkpoint({"state_dict": torch.zeros(1 << 16)}, newer)
    assert [folder.name for folder in path.parent.iterdir()] == [path.name]
    assert damage(path) is None


IDENTITY = {"model.width": 64, "seed": 1, "data.fingerprint": "abc", "batch.tokens_per_step": 2048}


def save(folder, step, **facts):
    path = folder / f"step_{step:08d}"
    facts = {"step": step, "tokens": step * 32, "identity": IDENTITY, **facts}
    write_atomically(path, facts=facts, write=lambda aside: (aside / "state.pt").write_bytes(b"weights"))
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder of three checkpoints."""
    for step in (9, 100, 20):
        save(tmp_path, step)
    return tmp_path


def test_damaged_checkpoints_are_passed_over_with_a_line_each(folder):
    (folder / "step_00000100" / "state.pt").write_bytes(b"weighty")
    (folder / "step_00000020" / "state.pt").unlink()
    facts, passed_over = newest_whole(folder)
    assert facts is not None
    assert facts.step == 9
    assert passed_over == [
        "step_00000100 is damaged: state.pt has changed since it was written (sha256 differs)",
        "step_00000020 is damaged: state.pt is missing",
    ]


@pytest.mark.faults
def test_a_run_whose_checkpoints_are_all_damaged_never_starts_again_in_silence(folder):
    for state in folder.glob("*/state.pt"):
        state.write_bytes(b"")
    with pytest.raises(EnvironmentProblem, match=r"step_00000100.*step_00000020.*step_00000009.*Name another run"):
        newest_whole(folder)


def test_every_field_that_differs_is_named_with_both_values(folder):
    facts = list_checkpoints(folder)[0]
    with pytest.raises(ConfigurationError) as refused:
        require_same_identity(facts, IDENTITY | {"seed": 2, "data.fingerprint": "xyz"})
    message = str(refused.value)
    assert "data.fingerprint=xyz, there abc; seed=2, there 1." in message
    assert "model.width" not in message
    assert "run.name" in message


def save_of_retention(folder_of_retention, step, score=None, **others):
    path = folder_of_retention / f"step_{step:08d}"
    metrics = ({} if score is None else {BITS_PER_BYTE: score}) | others
    facts = {"step": step, "tokens": step, "identity": {}, "metrics": metrics}
    write_atomically(path, facts=facts, write=lambda aside: (aside / "state.pt").write_bytes(b"weights"))
    return path


@pytest.fixture
def folder_of_retention(tmp_path):
    """Four checkpoints, the second the best."""
    for step, score in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None)):
        save_of_retention(tmp_path, step, score)
    return tmp_path


def steps(folder_of_retention):
    return sorted(int(path.name.removeprefix("step_")) for path in folder_of_retention.iterdir())


def test_all_stay_while_the_new_one_is_not_whole(folder_of_retention):
    (folder_of_retention / "step_00000004" / "state.pt").write_bytes(b"weight$")
    with pytest.raises(EnvironmentProblem, match=r"was written, but state\.pt has changed.*older checkpoints are kept"):
        Retention(keep_last=1, keep_best=False).after(folder_of_retention / "step_00000004")
    assert steps(folder_of_retention) == [1, 2, 3, 4]


def model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))  # with buffers


def state_of(module):
    """Return a state as the training module saves it, with its optimizer's beside the model's."""
    return {f"language_model.{name}": tensor for name, tensor in module.state_dict().items()}


STATE_OF = state_of


def save_one_file(path, module):
    AtomicCheckpointIO().save_checkpoint({"state_dict": state_of(module), "optimizer_states": []}, path)


def save_sharded(path, module):
    state = {"state_dict": state_of(module), "optimizer_0": {"momentum": torch.zeros(3)}}
    write_atomically(
        path,
        facts={},
        write=lambda folder: sharded_checkpoint.save(state, checkpoint_id=folder / SHARDED, no_dist=True),
    )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("save", [save_one_file, save_sharded])
def test_a_model_gets_the_weights_and_buffers_of_a_checkpoint(tmp_path, save):
    saved, loaded = model(0), model(1)
    saved(torch.randn(5, 3))  # moves the buffers
    save(tmp_path / "step_1", saved)
    load_weights(loaded, tmp_path / "step_1")
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


@pytest.mark.parametrize("save", [save_one_file, save_sharded])
def test_a_damaged_checkpoint_changes_no_weight(tmp_path, save):
    save(tmp_path / "step_1", model(0))
    largest = max((path for path in tmp_path.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    loaded = model(1)
    with pytest.raises(EnvironmentProblem, match="step_1 is damaged"):
        load_weights(loaded, tmp_path / "step_1")
    assert torch.equal(loaded[0].weight, model(1)[0].weight)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("save", [save_one_file, save_sharded])
def test_a_model_gets_the_average_of_a_checkpoint_that_has_one(tmp_path, save, monkeypatch):
    saved, averaged, loaded = model(0), model(2), model(1)
    averages = {f"weight_average.{name}": parameter.detach() for name, parameter in averaged.named_parameters()}
    monkeypatch.setitem(globals(), "state_of", lambda module: STATE_OF(module) | averages)
    save(tmp_path / "step_1", saved)
    load_weights(loaded, tmp_path / "step_1", "ema")
    for name, parameter in averaged.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter), name
    load_weights(loaded, tmp_path / "step_1")
    assert torch.equal(loaded[0].weight, saved[0].weight)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("save", [save_one_file, save_sharded])
def test_an_average_that_no_run_kept_is_refused(tmp_path, save):
    save(tmp_path / "step_1", model(0))
    with pytest.raises(ConfigurationError, match="holds no average of the weights; train with weight_average=ema"):
        load_weights(model(1), tmp_path / "step_1", "ema")
