import importlib.machinery
import re
import sys
import types
from typing import NamedTuple

import pytest
import torch
from torch.nn import functional as F

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.losses.liger import LigerCrossEntropy
from lmtrain.missing_package import install_command
from tests.losses.loss_checks import batch, check_against_plain


class Output(NamedTuple):
    loss: torch.Tensor
    z_loss: torch.Tensor


def fused(states, weight, targets, *, ignore_index, lse_square_scale, reduction, softcap, return_z_loss, accum_dtype):
    """Compute what Liger documents: the z-loss is part of the loss, and returned beside it when asked for."""
    assert (states.ndim, weight.ndim, targets.ndim) == (2, 2, 1)
    assert reduction == "sum"
    assert accum_dtype == torch.float32
    scores = F.linear(states, weight).float()
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    z_loss = lse_square_scale * scores.logsumexp(-1).square().masked_fill(targets == ignore_index, 0).sum()
    loss = F.cross_entropy(scores, targets, ignore_index=ignore_index, reduction="sum") + z_loss
    return Output(loss, z_loss) if return_z_loss else loss


@pytest.fixture
def package(monkeypatch):
    for name in ("liger_kernel", "liger_kernel.transformers", "liger_kernel.transformers.functional"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        module.liger_fused_linear_cross_entropy = fused
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("z_loss_weight", [0.0, 0.1])
@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_it_is_called_as_documented(package, z_loss_weight, soft_cap):
    check_against_plain(LigerCrossEntropy(z_loss_weight=z_loss_weight), batch(soft_cap=soft_cap))


def test_a_missing_package_is_one_line_with_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=re.escape(f"liger_kernel: {install_command('liger')}, or use")):
        LigerCrossEntropy().require_fit(device_type="cuda", soft_cap=None)


def test_a_cpu_is_refused_before_training(package):
    with pytest.raises(ConfigurationError, match="loss=liger needs an NVIDIA GPU, and this is cpu"):
        LigerCrossEntropy().require_fit(device_type="cpu", soft_cap=None)
    LigerCrossEntropy().require_fit(device_type="cuda", soft_cap=2.0)
