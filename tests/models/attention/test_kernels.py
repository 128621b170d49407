"""Kernels inside a model: masks made once a forward, blocks recomputed and compiled, other documents in every batch."""

import sys

import pytest
import torch
from hypothesis import given, settings
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.nn.attention import flex_attention as torch_flex

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.models.attention import auto as auto_module
from lmtrain.models.attention.auto import Auto, ByCase, Uncompiled
from lmtrain.models.attention.base import KernelTarget, document_borders
from lmtrain.models.attention.blocked import Blocked
from lmtrain.models.attention.eager import Eager, eager
from lmtrain.models.attention.flash import LoadedFlash, load_package
from lmtrain.models.attention.flex import Flex
from lmtrain.models.attention.sdpa import SDPA
from lmtrain.models.llama import Llama
from lmtrain.parallel.activation_checkpoint import every_block
from tests.models.attention.fake_flash import FakeFlash, hopper
from tests.models.attention.kernel_checks import cases, check_against_eager, qkv, rows_of_documents

KERNELS = [Eager(), SDPA(), Blocked(), Auto()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_every_kernel_equals_the_reference_with_its_gradients(kernel, dtype):
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(cases())
    def check(case):
        shapes, window_tokens, documents = case
        check_against_eager(kernel, qkv(**shapes, dtype=dtype), window_tokens=window_tokens, documents=documents)

    check()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
@pytest.mark.parametrize("window_tokens", [None, 6])
@pytest.mark.parametrize("has_documents", [False, True])
def test_later_tokens_change_nothing_before_them(kernel, window_tokens, has_documents):
    q, k, v = qkv(gradients=False)
    documents = rows_of_documents(24) if has_documents else None
    before = kernel(q, k, v, window_tokens=window_tokens, documents=documents)
    for tensor in (q, k, v):
        tensor[:, :, 10:] = torch.randn_like(tensor[:, :, 10:])
    after = kernel(q, k, v, window_tokens=window_tokens, documents=documents)
    assert torch.equal(before[:, :, :10], after[:, :, :10])
    assert not torch.allclose(before[:, :, 10:], after[:, :, 10:])


def test_reference_equals_the_formula_of_torch_in_fp64():
    q, k, v = qkv(dtype=torch.float64, num_kv_heads=4)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(eager(q, k, v), expected, rtol=0, atol=1e-12)


def test_a_document_is_what_it_would_be_alone():
    q, k, v = qkv(num_tokens=24)
    documents = torch.tensor([[0] * 10 + [1] * 14, [0] * 24], dtype=torch.int32)
    together = eager(q, k, v, documents=documents)
    torch.testing.assert_close(together[:1, :, 10:], eager(q[:1, :, 10:], k[:1, :, 10:], v[:1, :, 10:]))
    torch.testing.assert_close(together[1:], eager(q[1:], k[1:], v[1:]))


CPU = torch.device("cpu")


def test_borders_are_where_documents_begin_when_rows_lie_end_to_end():
    documents = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 1]], dtype=torch.int32)
    borders = document_borders(documents, max_documents=3)
    assert borders.dtype == torch.int32
    assert borders.tolist() == [0, 2, 3, 4, 5, 8, 8]


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
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("has_documents", [False, True])
def test_a_recomputed_model_has_the_loss_and_gradients_of_the_reference(kernel, has_documents):
    documents = rows_of_documents(NUM_TOKENS) if has_documents else None
    nats, gradients = run(every_block(llama(kernel)), documents)
    expected, wanted = run(llama(Eager()), documents)
    torch.testing.assert_close(nats, expected, rtol=1e-6, atol=0)
    for gradient, correct in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, correct, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
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


H100 = KernelTarget(device_type="cuda", dtype=torch.bfloat16)


@pytest.fixture
def no_packages(monkeypatch):
    hopper(monkeypatch)
    monkeypatch.setattr(auto_module, "kernel_picked", lambda place: "cuDNN")
    for name in ("flash_attn", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, name, None)


def test_a_gpu_without_packages_falls_back_to_flex_and_says_why(no_packages):
    kernel = Auto().fitted(H100)
    assert isinstance(kernel, ByCase)
    assert isinstance(kernel.cut, Flex)
    line = kernel.describe(H100)
    assert line.startswith("auto: sdpa (cuDNN); windows and documents in flex: torch's block-sparse kernel on cuda")
    assert "needs the package flash_attn_interface" in line
    assert "\n" not in line


@pytest.mark.parametrize("window_tokens", [None, 5, 24])
@pytest.mark.parametrize("has_documents", [False, True])
def test_either_case_equals_the_reference(window_tokens, has_documents):
    documents = rows_of_documents(24) if has_documents else None
    for kernel in (ByCase(cut=Eager()), Uncompiled()):
        check_against_eager(kernel, qkv(), window_tokens=window_tokens, documents=documents)
