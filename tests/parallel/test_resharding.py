from pathlib import Path

import pytest
import torch
from torch import nn

from lmtrain.parallel import resharding
from lmtrain.parallel.resharding import reshard
from tests.parallel.strategy_parity import RELATIVE, TRAIL, along_the_trail, require_same_end, trained


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


@pytest.mark.slow
@pytest.mark.distributed
def test_one_run_goes_on_through_every_strategy_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Muon keeps a momentum of matrices and AdamW's moments of the rest: both states cross every layout."""
    case = {"model": "llama", "optimizer": "muon", "loss": "plain"}
    straight = {**case, "strategy": "single", "micro_batch_sequences": 8, "steps": len(TRAIL)}
    (expected,) = trained(tmp_path, [straight])
    legs = along_the_trail(tmp_path, case)
    losses = {step: loss for leg in legs for step, loss in leg["losses"].items()}
    assert losses == pytest.approx(expected["losses"], rel=RELATIVE)
    require_same_end(legs[-1], expected)
