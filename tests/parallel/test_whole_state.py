from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as sharded_checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from lmtrain.errors import EnvironmentProblem
from lmtrain.parallel.shard_reading import part_optimizer_state, read_whole
from lmtrain.storage.checkpoint_layout import OPTIMIZERS, REST, WEIGHTS, sharded_name


def trained() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return a model and its optimizer, of two groups in another order than the model's, after two steps."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    groups: list[dict[str, Any]] = [
        {"params": [model[1].weight], "lr": 0.1, "betas": (0.8, 0.9)},
        {"params": [model[0].bias, model[0].weight, model[1].bias], "lr": 0.2},
    ]
    optimizer = torch.optim.AdamW(groups)
    for _ in range(2):
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The shards of a trained model, as one rank writes them."""
    model, optimizer = trained()
    state = {WEIGHTS: get_model_state_dict(model), sharded_name(0): get_optimizer_state_dict(model, optimizer)}
    sharded_checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    torch.save({"global_step": 2}, tmp_path / REST)
    return tmp_path


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_shards_read_whole_fill_a_plain_model_and_optimizer(sharded: Path) -> None:
    whole = read_whole(sharded)
    model, optimizer = trained()
    expected = optimizer.state_dict()
    fresh = torch.optim.AdamW([{**group, "params": [*group["params"]]} for group in optimizer.param_groups])
    fresh.load_state_dict(whole[OPTIMIZERS][0])
    found = fresh.state_dict()
    assert whole["global_step"] == 2
    torch.testing.assert_close(whole[WEIGHTS], dict(model.state_dict()), rtol=0, atol=0)
    torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=0)
    assert found["param_groups"] == expected["param_groups"]


def test_a_numbered_state_takes_the_names_of_the_same_optimizer() -> None:
    model, optimizer = trained()
    like = get_optimizer_state_dict(model, optimizer)
    found = part_optimizer_state(optimizer.state_dict(), like)
    torch.testing.assert_close(found["state"], like["state"], rtol=0, atol=0)
    assert found["param_groups"] == like["param_groups"]


def test_the_state_of_other_groups_is_refused() -> None:
    model, optimizer = trained()
    other = torch.optim.AdamW(model.parameters()).state_dict()
    with pytest.raises(EnvironmentProblem, match=r"groups of \[4\] parameters, this one has groups of \[1, 3\]"):
        part_optimizer_state(other, get_optimizer_state_dict(model, optimizer))
