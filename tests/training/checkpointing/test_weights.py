import pytest
import torch
import torch.distributed.checkpoint as sharded_checkpoint
from torch import nn

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.parallel.fsdp import SHARDED
from lmtrain.storage.hashed_folder import write_atomically
from lmtrain.training.checkpointing.checkpoint_io import AtomicCheckpointIO
from lmtrain.training.checkpointing.weights import load_weights, weight_shapes


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


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("save", [save_one_file, save_sharded])
def test_shapes_are_known_before_weights_are_read(tmp_path, save):
    save(tmp_path / "step_1", model(0))
    assert weight_shapes(tmp_path / "step_1") == {name: tuple(one.shape) for name, one in model(0).state_dict().items()}


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


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    save_one_file(tmp_path / "step_1", nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(RuntimeError, match=r"Missing key.*1\.weight"):
        load_weights(model(1), tmp_path / "step_1")
