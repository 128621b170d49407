"""Stand-ins for the FlashAttention packages: they check what they are given, then compute the reference on the CPU."""

import importlib.machinery
import sys
import types

import torch

from lmtrain.models.attention.eager import eager


class FakeFlash:
    """Records calls; `as_tuple` also returns a log-sum-exp, as some versions do."""

    def __init__(self, *, as_tuple=False):
        self.as_tuple = as_tuple
        self.calls = []

    def flash_attn_func(self, q, k, v, *, causal, window_size):
        self.calls.append("dense")
        assert q.ndim == k.ndim == v.ndim == 4
        assert q.shape[:2] == k.shape[:2] == v.shape[:2], "[B, T, H, K]"
        result = attend(q, k, v, causal=causal, window_size=window_size, documents=None)
        return (result, None) if self.as_tuple else result

    def flash_attn_varlen_func(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, causal, window_size
    ):
        self.calls.append("ragged")
        assert cu_seqlens_q is cu_seqlens_k
        result = self.ragged(q, k, v, cu_seqlens_q, max_seqlen_q, causal=causal, window_size=window_size)
        assert max_seqlen_q == max_seqlen_k
        return (result, None) if self.as_tuple else result

    def ragged(self, q, k, v, borders, max_tokens, *, causal, window_size):
        assert q.ndim == k.ndim == v.ndim == 3, "[B * T, H, K]"
        assert borders.dtype == torch.int32
        assert borders[0] == 0
        assert borders[-1] == len(q) == len(k) == len(v)
        lengths = borders.diff()
        assert (lengths >= 0).all()
        assert lengths.max() <= max_tokens
        documents = torch.repeat_interleave(torch.arange(len(lengths)), lengths)[None]
        whole = (x[None] for x in (q, k, v))
        return attend(*whole, causal=causal, window_size=window_size, documents=documents)[0]

    def install(self, monkeypatch, name):
        """Put this in the place of a module, and of the packages above it."""
        parts, module = name.split("."), types.ModuleType(name)
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            module = types.ModuleType(path)
            module.__spec__ = importlib.machinery.ModuleSpec(path, None, origin=path, is_package=depth < len(parts))
            module.__path__ = []
            module.__version__ = "2.8.3"
            monkeypatch.setitem(sys.modules, path, module)
        module.flash_attn_func = self.flash_attn_func
        module.flash_attn_varlen_func = self.flash_attn_varlen_func
        return self


def attend(q, k, v, *, causal, window_size, documents):
    """Compute what the packages document: `window_size` tokens to each side besides the token itself, -1 for all."""
    left, right = window_size
    assert causal
    assert (left, right) == (-1, -1) or (left >= 0 and right == 0)
    heads = (x.transpose(1, 2) for x in (q, k, v))
    window = None if left == -1 else left + 1
    return eager(*heads, window_tokens=window, documents=documents).transpose(1, 2)


def hopper(monkeypatch, capability=(9, 0)):
    """Pretend that a GPU of some compute capability is there."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: capability)
