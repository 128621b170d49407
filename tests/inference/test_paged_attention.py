import torch

from lmtrain.inference.paged_attention import paged
from lmtrain.models.attention.base import KernelTarget
from lmtrain.models.attention.sdpa import sdpa


def test_without_a_cache_it_is_torchs_own():
    q, k, v = torch.randn(3, 2, 4, 9, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(paged(q, k, v, window_tokens=3), sdpa(q, k, v, window_tokens=3))


def test_it_says_where_it_runs():
    assert paged.describe(KernelTarget(device_type="cpu", dtype=torch.float32)).endswith("on cpu")
