import pytest
import torch
from torch import nn

from lmtrain.parallel import resharding
from lmtrain.parallel.resharding import reshard


class Sharded(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.num_reshards = 0

    def reshard(self) -> None:
        self.num_reshards += 1


def test_every_sharded_module_forgets_what_it_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resharding, "FSDPModule", Sharded)
    model = nn.Sequential(Sharded(), nn.ReLU(), nn.Sequential(Sharded()))
    reshard(model)
    assert [module.num_reshards for module in model.modules() if isinstance(module, Sharded)] == [1, 1]


def test_an_unsharded_model_is_left_as_it_is() -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    reshard(model)
    assert torch.equal(model.weight, before)
