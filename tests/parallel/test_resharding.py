from pathlib import Path

import pytest
import torch
from torch import nn

from lmtrain.parallel import gradients as resharding
from lmtrain.parallel.gradients import reshard
from tests.parallel.strategy_parity import (
    RELATIVE,
    TRAIL,
    along_the_trail,
    losses_along,
    require_same_end,
    trained,
)


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


# Muon's products in bf16 amplify the last bits of gradients, which depend on the order of sums: one process with other
# last bits has losses up to 2e-6 apart over these steps, and so may a run through the strategies.
OF_LAST_BITS = 1e-5
# In fp32 the losses agree; weights of one process end 2.3e-6 to 7.4e-6 apart with other last bits of gradients (six
# seeds), 8.6e-6 with smaller micro-batches. A lost moment would be a thousand times that.
OF_LAST_WEIGHTS = 2e-5


@pytest.mark.slow
@pytest.mark.distributed
def test_one_run_goes_on_through_every_strategy_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Muon keeps a momentum of matrices and AdamW's moments of the rest: both states cross every layout."""
    cases = [{"model": "llama", "optimizer": one, "loss": "plain"} for one in ("muon", "muon_bf16")]
    straight = [{**one, "strategy": "single", "micro_batch_sequences": 8, "steps": len(TRAIL)} for one in cases]
    expected, in_bf16, shaken = trained(tmp_path, [*straight, {**straight[1], "last_bits": 1}])
    legs, legs_in_bf16 = along_the_trail(tmp_path, cases)
    assert losses_along(legs) == pytest.approx(expected["losses"], rel=RELATIVE)
    require_same_end(legs[-1], expected, atol=OF_LAST_WEIGHTS)
    for losses in (shaken["losses"], losses_along(legs_in_bf16)):
        assert losses == pytest.approx(in_bf16["losses"], rel=OF_LAST_BITS)
        assert losses != pytest.approx(in_bf16["losses"], rel=RELATIVE / 10), "the products amplify them"
