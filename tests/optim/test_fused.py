"""Fused where the device can, refused where it cannot."""

from typing import Any

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.optim import fused
from lmtrain.optim.fused import can_fold, choose_fused, fold_into_step


@pytest.mark.parametrize(("wanted", "chosen"), [(None, True), (True, True), (False, False)])
def test_a_device_with_a_kernel_does_as_told(wanted: bool | None, chosen: bool) -> None:
    assert choose_fused([torch.zeros(1)], wanted=wanted) is chosen


def test_a_device_without_one_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "FUSED_DEVICES", frozenset({"cuda"}))
    with pytest.raises(ConfigurationError, match=r"optimizer\.fused=true: .* no fused kernel for cpu; .*fused=null"):
        choose_fused([torch.zeros(1)], wanted=True)
    assert choose_fused([torch.zeros(1)], wanted=None) is False


def test_a_rehearsal_on_the_meta_device_is_not_refused() -> None:
    assert choose_fused([torch.zeros(1, device="meta")], wanted=True) is False


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_factor_folded_into_the_fused_step_moves_weights_as_scaled_gradients_do(kind: Any) -> None:
    def stepped(*, folded: bool) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(5, 3, generator=generator))
        optimizer = kind([weight], lr=0.1, fused=True)
        for clip in (0.25, 1.0, 0.5):
            weight.grad, factor = torch.randn(5, 3, generator=generator), torch.tensor(clip)
            if folded:
                assert can_fold(optimizer)
                fold_into_step(optimizer, factor.reciprocal())
            else:
                weight.grad.mul_(factor)
            optimizer.step()
        return weight.detach()

    torch.testing.assert_close(stepped(folded=True), stepped(folded=False), rtol=1e-6, atol=1e-7)


def test_without_a_fused_kernel_gradients_are_left_to_the_caller() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=0.1, fused=False)
    assert not can_fold(optimizer)


def test_a_sharded_parameter_is_left_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=0.1, fused=True)
    monkeypatch.setattr(fused, "local", lambda parameter: parameter.detach())  # the part of a rank is another tensor
    assert not can_fold(optimizer)
