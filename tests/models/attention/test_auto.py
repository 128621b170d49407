import sys
from dataclasses import replace

import pytest
import torch

from lmtrain.models.attention import auto as auto_module
from lmtrain.models.attention.auto import BLOCKED_UP_TO_TOKENS, Auto, ByCase, Uncompiled
from lmtrain.models.attention.base import KernelTarget
from lmtrain.models.attention.blocked import NUM_BLOCKS
from lmtrain.models.attention.eager import Eager
from lmtrain.models.attention.flash import LoadedFlash
from lmtrain.models.attention.flex import Flex
from lmtrain.models.attention.sdpa import SDPA
from tests.models.attention.fake_flash import FakeFlash, hopper
from tests.models.attention.kernel_checks import check_against_eager, qkv, rows_of_documents

CPU = KernelTarget(device_type="cpu", dtype=torch.float32)
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


def test_eagerly_a_cpu_gets_blocks_of_rows_for_narrow_windows_only(monkeypatch):
    calls = recorded(monkeypatch)
    kernel = Auto().fitted(CPU)
    assert isinstance(kernel, Uncompiled)
    for window_tokens in (None, 24 // NUM_BLOCKS, 24 // NUM_BLOCKS + 1):
        kernel(*qkv(), window_tokens=window_tokens)
    assert calls == ["sdpa", "blocked", "sdpa"]


def test_the_choice_on_a_cpu_is_said():
    compiled = replace(CPU, is_compiled=True)
    assert Auto().fitted(compiled).describe(compiled) == "auto: blocked up to 1024 tokens, sdpa (flash) beyond, on cpu"
    assert Auto().fitted(CPU).describe(CPU) == (
        "auto: sdpa (flash), windows up to 1/4 of the context in blocked, on cpu"
    )


def test_a_gpu_without_packages_falls_back_to_flex_and_says_why(no_packages):
    kernel = Auto().fitted(H100)
    assert isinstance(kernel, ByCase)
    assert isinstance(kernel.cut, Flex)
    line = kernel.describe(H100)
    assert line.startswith("auto: sdpa (cuDNN); windows and documents in flex: torch's block-sparse kernel on cuda")
    assert "needs the package flash_attn_interface" in line
    assert "\n" not in line


def test_a_gpu_with_a_package_uses_it_for_what_is_cut(no_packages, monkeypatch):
    FakeFlash().install(monkeypatch, "flash_attn")
    kernel = Auto().fitted(H100)
    assert isinstance(kernel, ByCase)
    assert isinstance(kernel.cut, LoadedFlash)
    assert kernel.notice == ""


def test_fp32_on_a_gpu_falls_back_and_says_so(no_packages, monkeypatch):
    FakeFlash().install(monkeypatch, "flash_attn")
    kernel = Auto().fitted(KernelTarget(device_type="cuda", dtype=torch.float32))
    assert isinstance(kernel.cut, Flex)
    assert "not float32" in kernel.notice


def test_heads_too_narrow_for_all_others_leave_sdpa(no_packages):
    kernel = Auto().fitted(KernelTarget(device_type="cuda", dtype=torch.float32, head_width=8))
    assert isinstance(kernel.cut, SDPA)


@pytest.mark.parametrize("window_tokens", [None, 5, 24])
@pytest.mark.parametrize("has_documents", [False, True])
def test_either_case_equals_the_reference(window_tokens, has_documents):
    documents = rows_of_documents(24) if has_documents else None
    for kernel in (ByCase(cut=Eager()), Uncompiled()):
        check_against_eager(kernel, qkv(), window_tokens=window_tokens, documents=documents)


def test_whole_contexts_go_to_torch_and_cut_ones_elsewhere(monkeypatch):
    calls = recorded(monkeypatch)
    kernel = ByCase(cut=Eager())
    prepared = kernel.prepare(None, num_tokens=24, windows=(None, 5), device=torch.device("cpu"))
    for window_tokens in (None, 5):
        kernel(*qkv(), window_tokens=window_tokens, documents=prepared)
    assert calls == ["sdpa"]
    assert kernel.prepare(None, num_tokens=24, windows=(None, 24), device=torch.device("cpu")) is None
