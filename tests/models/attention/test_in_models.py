"""Kernels inside a model: masks made once a forward, blocks recomputed and compiled, other documents in every batch."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention as torch_flex

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.models.attention.auto import Auto, ByCase
from lmtrain.models.attention.blocked import Blocked
from lmtrain.models.attention.eager import Eager
from lmtrain.models.attention.flash import LoadedFlash, load_package
from lmtrain.models.attention.flex import Flex
from lmtrain.models.attention.sdpa import SDPA
from lmtrain.models.llama import Llama
from lmtrain.parallel.activation_checkpoint import every_block
from tests.models.attention.fake_flash import FakeFlash, hopper
from tests.models.attention.kernel_checks import rows_of_documents

NUM_TOKENS = 40


@pytest.fixture
def kernel(request, monkeypatch):
    """Return the kernel of a name; torch's flex is let do its backward pass in plain operations on the CPU."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    hopper(monkeypatch)
    FakeFlash().install(monkeypatch, "flash_attn")
    return {
        "sdpa": SDPA,
        "blocked": Blocked,
        "auto": Auto,
        "by case": lambda: ByCase(cut=Eager()),
        "flex": Flex,
        "flash": lambda: LoadedFlash(load_package(2)),
    }[request.param]()


every_kernel = pytest.mark.parametrize("kernel", ["sdpa", "blocked", "auto", "by case", "flex", "flash"], indirect=True)
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def llama(attention):
    model = Llama(
        width=32,
        num_layers=4,
        num_heads=2,
        num_kv_heads=1,
        feed_forward_width=48,
        vocab_size=61,
        max_context_tokens=NUM_TOKENS,
        window_tokens=9,
        window_pattern="SL",
        attention=attention,
    )
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


def run(model, documents):
    tokens = torch.randint(61, (2, NUM_TOKENS), generator=torch.Generator().manual_seed(1))
    total = model(tokens, tokens, ChunkedCrossEntropy(z_loss_weight=1e-3), documents=documents)
    total.objective.backward()
    return total.nats, [parameter.grad for parameter in model.parameters()]


@every_kernel
@pytest.mark.parametrize("has_documents", [False, True])
def test_a_recomputed_model_has_the_loss_and_gradients_of_the_reference(kernel, has_documents):
    documents = rows_of_documents(NUM_TOKENS) if has_documents else None
    nats, gradients = run(every_block(llama(kernel)), documents)
    expected, wanted = run(llama(Eager()), documents)
    torch.testing.assert_close(nats, expected, rtol=1e-6, atol=0)
    for gradient, correct in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, correct, rtol=1e-3, atol=1e-4)


@every_kernel
def test_masks_are_made_once_a_forward(kernel, monkeypatch):
    calls, prepare = [], type(kernel).prepare
    monkeypatch.setattr(type(kernel), "prepare", lambda self, *a, **kw: calls.append(1) or prepare(self, *a, **kw))
    with torch.no_grad():
        llama(kernel)(torch.zeros(2, NUM_TOKENS, dtype=torch.int64), documents=rows_of_documents(NUM_TOKENS))
    assert calls == [1]


@pytest.mark.parametrize("kernel", ["sdpa", "blocked", "auto", "by case", "flex"], indirect=True)
def test_compiled_blocks_never_compile_again_for_other_documents(kernel):
    torch._dynamo.reset()
    counter, model = CompileCounter(), llama(kernel)
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False, backend=counter)
    tokens = torch.zeros(2, NUM_TOKENS, dtype=torch.int64)
    counts = []
    with torch.no_grad():
        for seed in range(3):
            model(tokens, documents=rows_of_documents(NUM_TOKENS, mean_tokens=3 + 5 * seed, seed=seed))
            counts.append(counter.frame_count)
    assert counts == [2, 2, 2]  # layers with the window, and layers without
