"""Kernels inside a model: masks made once a forward, blocks recomputed and compiled, other documents in every batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.nn.attention import flex_attention as torch_flex

from lmtrain.losses.chunked import ChunkedCrossEntropy
from lmtrain.models.attention import auto as auto_module
from lmtrain.models.attention.auto import BLOCKED_UP_TO_TOKENS, Auto, ByCase, Uncompiled
from lmtrain.models.attention.base import KernelTarget, document_borders, seen_tokens
from lmtrain.models.attention.blocked import NUM_BLOCKS, Blocked
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


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_what_is_hidden_by_a_window_or_a_border_is_not_seen(kernel):
    q, k, v = qkv(gradients=False)
    documents = torch.tensor([[0] * 12 + [1] * 12] * 2, dtype=torch.int32)
    before = kernel(q, k, v, window_tokens=4), kernel(q, k, v, documents=documents)
    v[:, :, 0] = 1e3
    after = kernel(q, k, v, window_tokens=4), kernel(q, k, v, documents=documents)
    assert torch.equal(before[0][:, :, 4:], after[0][:, :, 4:])
    assert torch.equal(before[1][:, :, 12:], after[1][:, :, 12:])
    assert not torch.allclose(before[1][:, :, :12], after[1][:, :, :12])


def test_shapes_in_signatures_are_true():
    """In a process of its own: see checked_shapes.py."""
    script = Path(__file__).with_name("checked_shapes.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("shapes hold, and one that does not is noticed") == 6


def test_reference_equals_the_formula_of_torch_in_fp64():
    q, k, v = qkv(dtype=torch.float64, num_kv_heads=4)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(eager(q, k, v), expected, rtol=0, atol=1e-12)


def test_each_group_of_heads_shares_keys_and_values():
    q, k, v = qkv(num_heads=4, num_kv_heads=2)
    for head in range(4):
        alone = eager(q[:, head : head + 1], k[:, head // 2 : head // 2 + 1], v[:, head // 2 : head // 2 + 1])
        torch.testing.assert_close(eager(q, k, v)[:, head : head + 1], alone)


def test_a_document_is_what_it_would_be_alone():
    q, k, v = qkv(num_tokens=24)
    documents = torch.tensor([[0] * 10 + [1] * 14, [0] * 24], dtype=torch.int32)
    together = eager(q, k, v, documents=documents)
    torch.testing.assert_close(together[:1, :, 10:], eager(q[:1, :, 10:], k[:1, :, 10:], v[:1, :, 10:]))
    torch.testing.assert_close(together[1:], eager(q[1:], k[1:], v[1:]))


def test_documents_and_a_window_both_hold():
    q, k, v = qkv(num_kv_heads=4)
    documents = rows_of_documents(24)
    torch.testing.assert_close(eager(q, k, v, window_tokens=1, documents=documents), v)


@pytest.mark.parametrize("num_tokens", [1, 2, NUM_BLOCKS - 1, NUM_BLOCKS, NUM_BLOCKS + 1, 7, 63, 64, 65])
def test_any_number_of_tokens_is_cut_into_blocks_without_loss(num_tokens):
    inputs = qkv(num_tokens=num_tokens)
    check_against_eager(Blocked(), inputs)
    check_against_eager(Blocked(), inputs, window_tokens=5, documents=rows_of_documents(num_tokens))


CPU = torch.device("cpu")


def test_mask_counts_the_token_itself():
    mask = seen_tokens(5, window_tokens=2, device=CPU)
    assert mask.sum(dim=1).tolist() == [1, 2, 2, 2, 2]


def test_documents_do_not_see_each_other():
    documents = torch.tensor([[0, 0, 1, 1], [0, 1, 2, 2]])
    mask = seen_tokens(4, window_tokens=None, device=CPU, documents=documents)
    assert mask.shape == (2, 1, 4, 4)
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert mask[1, 0].int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


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
    for name in ("flash_attn", "flash_attn_interface", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, None)


def recorded(monkeypatch):
    """Return the list in which each call notes which kernel ran."""
    calls = []
    for name in ("blocked", "sdpa"):
        kernel = getattr(auto_module, name)
        monkeypatch.setattr(
            auto_module, name, lambda *x, name=name, kernel=kernel, **kw: calls.append(name) or kernel(*x, **kw)
        )
    return calls


def test_a_cpu_gets_blocks_of_rows_at_short_contexts(monkeypatch):
    calls = recorded(monkeypatch)
    for num_tokens in (BLOCKED_UP_TO_TOKENS, BLOCKED_UP_TO_TOKENS + 1):
        Auto()(*qkv(num_tokens=num_tokens, batch=1, num_heads=1, num_kv_heads=1, head_width=8))
    assert calls == ["blocked", "sdpa"]


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
