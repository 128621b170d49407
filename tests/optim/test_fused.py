"""Fused where the device can, refused where it cannot."""

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.optim import fused
from lmtrain.optim.fused import choose_fused


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
