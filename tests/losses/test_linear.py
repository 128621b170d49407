import pytest
import torch
from hypothesis import given, settings
from torch.nn import functional as F

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.losses.linear import LinearCrossEntropy
from tests.losses.loss_checks import batch, cases, check_against_plain

HAS_IT = hasattr(F, "linear_cross_entropy")
needs_torch = pytest.mark.skipif(not HAS_IT, reason="torch before 2.13 has no linear_cross_entropy")


@needs_torch
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_and_gradients_are_those_of_the_plain_loss(dtype):
    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(cases(soft_caps=(None,)))
    def check(case):
        options, z_loss_weight = case
        loss = LinearCrossEntropy(z_loss_weight=z_loss_weight, chunk_tokens=7)
        check_against_plain(loss, batch(**options, dtype=dtype), values=1e-5 if dtype == torch.float32 else None)

    check()


@needs_torch
@pytest.mark.parametrize("z_loss_weight", [0.0, 1e-2])
def test_under_autocast_it_is_near_the_plain_loss(z_loss_weight):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = LinearCrossEntropy(z_loss_weight=z_loss_weight)
        check_against_plain(loss, batch(num_batch=4, num_tokens=32), values=5e-3, gradients=3e-2)


@needs_torch
def test_a_soft_cap_is_refused_before_training():
    with pytest.raises(ConfigurationError, match=r"loss=linear has no soft cap, and the model's is 15\.0"):
        LinearCrossEntropy().require_fit(device_type="cpu", soft_cap=15.0)
    LinearCrossEntropy().require_fit(device_type="cpu", soft_cap=None)
    with pytest.raises(ConfigurationError, match=r"loss\.chunk_tokens=0 is below 1"):
        LinearCrossEntropy(chunk_tokens=0)
    assert LinearCrossEntropy(chunk_tokens=100).logit_tokens(10_000) == 100


def test_an_older_torch_is_told_apart(monkeypatch):
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    with pytest.raises(EnvironmentProblem, match=r"loss=linear needs torch 2\.13.*use loss=chunked"):
        LinearCrossEntropy().require_fit(device_type="cpu", soft_cap=None)
