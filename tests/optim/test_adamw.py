"""The same numbers as torch.optim.AdamW, step by step, and decay where it belongs."""

import pytest
import torch

from lmtrain.optim.adamw import adamw
from tests.optim.models import fill_gradients, tiny_model

SETTINGS = {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-7}


def test_equals_torch_step_by_step() -> None:
    ours, theirs = tiny_model(), tiny_model()
    tables = [module.weight for module in theirs.modules() if isinstance(module, torch.nn.Embedding)]
    decayed = [p for p in theirs.parameters() if p.ndim == 2 and all(p is not table for table in tables)]
    others = [p for p in theirs.parameters() if all(p is not q for q in decayed)]
    reference = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=0.01, betas=(0.8, 0.95), eps=1e-7, foreach=False,
    )  # fmt: skip
    optimizer = adamw(ours, **SETTINGS, weight_decay=0.1)
    for step in range(5):
        for model, one in ((ours, optimizer), (theirs, reference)):
            fill_gradients(model, step)
            one.step()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=2e-7)  # fused rounds in another order


@pytest.mark.parametrize(("decay_embeddings", "expected"), [(False, 0.0), (True, 0.1)])
def test_embeddings_decay_only_on_request_and_vectors_never(decay_embeddings: bool, expected: float) -> None:
    optimizer = adamw(tiny_model(), **SETTINGS, weight_decay=0.1, decay_embeddings=decay_embeddings)
    decay = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decay == {"matrices": 0.1, "head": 0.1, "embeddings": expected, "vectors": 0.0}


def test_fused_on_this_device() -> None:
    model = tiny_model()
    optimizer = adamw(model, lr=0.01)
    fill_gradients(model, 0)
    with torch.profiler.profile() as profile:
        optimizer.step()
    assert "aten::_fused_adamw_" in {event.key for event in profile.key_averages()}


def test_tied_model_has_no_head_group() -> None:
    optimizer = adamw(tiny_model(tied=True), lr=0.01)
    assert [group["name"] for group in optimizer.param_groups] == ["matrices", "embeddings", "vectors"]
