"""What fake tensors tell of compiled blocks against what the real compiler's graphs keep and take on this CPU."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.llama import Llama
from lmtrain.parallel import activation_checkpoint
from lmtrain.precision.policy import bf16_mixed
from lmtrain.simulate.measured_facts import compiled_blocks, fake_tensors
from tests.counted_kernels import counted_kernels

SHAPE = (2, 128)
CASES = [("none", None), ("selective", "bf16")]


class Feed(nn.Module):
    """Add relu(x U) D to x: without a gradient of relu's input, which relu's output tells."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 48, bias=False), nn.Linear(48, 16, bias=False)

    def forward(self, x):
        return x + self.down(F.relu(self.up(x)))


class Feeds(nn.Module):
    def __init__(self, num_blocks):
        super().__init__()
        self.table = nn.Embedding(10, 16)
        self.blocks = nn.ModuleList(Feed() for _ in range(num_blocks))

    def features(self, tokens, documents=None):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return x, None


def build(recompute, residual):
    torch.manual_seed(0)
    model = Llama(
        width=64,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        feed_forward_width=256,
        vocab_size=1000,
        max_context_tokens=128,
        attention=sdpa,
    )
    model = bf16_mixed(residual=residual).prepare(model, strategy_casts=False)
    return getattr(activation_checkpoint, recompute)(model)


def measured(model):
    """Return the bytes that the compiler's graphs leave after the forward pass, and the peak of the backward pass.

    Hidden states and their gradient, which are held here to the end, are not of the peak.
    """
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False)
    tokens = torch.zeros(SHAPE, dtype=torch.int64)
    seen = SimpleNamespace(kept=0, storages={id(t.untyped_storage()): t for t in (*model.parameters(), tokens)})
    seen.storages |= {id(buffer.untyped_storage()): buffer for buffer in model.buffers()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if id(storage) not in seen.storages:
            seen.storages[id(storage)] = storage
            seen.kept += storage.nbytes()
        return tensor

    def forward():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model.features(tokens)[0]

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = forward()
    keep(hidden)
    hidden.backward(torch.zeros_like(hidden))  # gradients are there from here on
    del hidden, seen.storages
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        hidden = forward()
        hidden.backward(torch.zeros_like(hidden))
    assert profiled.profiler is not None
    assert profiled.profiler.kineto_results is not None
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return seen.kept, peak - 2 * hidden.nbytes


def predicted(make):
    with fake_tensors(), torch.autocast("cpu", dtype=torch.bfloat16):
        return compiled_blocks(make(), SHAPE)


@pytest.mark.slow
@pytest.mark.parametrize(("recompute", "residual"), CASES)
def test_real_compiled_blocks_keep_and_take_as_much(recompute, residual):
    told = predicted(lambda: build(recompute, residual))
    with counted_kernels():  # a kernel in C++ allocates nothing
        kept, peak = measured(build(recompute, residual))
    assert told.activations == pytest.approx(kept, rel=0.01)
    assert told.peak == pytest.approx(peak, rel=0.05)
