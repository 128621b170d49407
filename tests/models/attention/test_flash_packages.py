import sys

import pytest
import torch
from torch.nn.attention import varlen

from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import install_command
from lmtrain.models.attention.flash import LoadedFlash, is_installed, load_package
from tests.models.attention.fake_flash import FakeFlash, hopper
from tests.models.attention.kernel_checks import check_against_eager, qkv, rows_of_documents

MODULES = {2: "flash_attn", 3: "flash_attn_interface", 4: "flash_attn.cute"}


@pytest.fixture
def hook(monkeypatch):
    """Stand in for torch's hook of version 4: returns (what was activated, calls of the ragged kernel)."""
    activated, fake = [], FakeFlash()

    def attend(q, k, v, borders, borders_k, max_q, max_k, *, window_size, enable_gqa):
        fake.calls.append("ragged")
        assert borders is borders_k
        assert max_q == max_k
        assert enable_gqa == (q.shape[1] != k.shape[1])
        left, right = window_size
        assert right == 0
        sides = (-1, -1) if left == -1 else (left, 0)
        return fake.ragged(q, k, v, borders, max_q, causal=True, window_size=sides)

    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", activated.append, raising=False)
    monkeypatch.setattr(torch.nn.attention, "list_flash_attention_impls", lambda: ["FA3", "FA4"], raising=False)
    monkeypatch.setattr(varlen, "varlen_attn", attend)
    return activated, fake.calls


@pytest.mark.parametrize(
    ("capability", "installed", "chosen"),
    [
        ((8, 0), (2, 3, 4), "flash_attn)"),
        ((9, 0), (2, 3), "flash_attn_interface"),
        ((9, 0), (2,), "flash_attn)"),
        ((9, 0), (2, 4), "hook"),
        ((10, 0), (2, 3, 4), "hook"),
    ],
)
def test_the_best_installed_version_that_the_gpu_runs_is_taken(monkeypatch, hook, capability, installed, chosen):
    hopper(monkeypatch, capability)
    for version in installed:
        FakeFlash().install(monkeypatch, MODULES[version])
    monkeypatch.setattr(
        "lmtrain.models.attention.flash.is_installed",
        lambda module: module in {MODULES[version] for version in installed},
    )
    assert chosen in load_package(None).name


def test_a_missing_package_is_one_line_with_what_to_do(monkeypatch):
    hopper(monkeypatch)
    for name in MODULES.values():
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EnvironmentProblem) as missing:
        load_package(None)
    assert str(missing.value) == (
        "attention=flash needs the package flash_attn_interface or flash_attn.cute or flash_attn:"
        f" {install_command('flash')} --no-build-isolation, or use attention=auto."
    )
    with pytest.raises(EnvironmentProblem, match="needs the package flash_attn:"):
        load_package(2)


def test_a_version_that_the_gpu_does_not_run_is_refused(monkeypatch):
    hopper(monkeypatch, (8, 6))
    with pytest.raises(EnvironmentProblem, match=r"attention\.version=3 .* capability 8\.6 \(it runs 2\)"):
        load_package(3)
    hopper(monkeypatch, (7, 5))
    with pytest.raises(EnvironmentProblem, match=r"attention=flash does not run on compute capability 7\.5"):
        load_package(None)


def test_a_package_counts_as_installed_only_with_its_own_module(monkeypatch):
    FakeFlash().install(monkeypatch, "flash_attn")
    assert is_installed("flash_attn")
    assert not is_installed("flash_attn.cute")
    assert not is_installed("no_such_package.at_all")


@pytest.mark.parametrize("window_tokens", [None, 1, 7, 24, 100])
@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize(("version", "as_tuple"), [(2, False), (3, True), (4, False)])
def test_every_version_is_called_as_documented(monkeypatch, hook, version, as_tuple, window_tokens, has_documents):
    hopper(monkeypatch)
    fake = FakeFlash(as_tuple=as_tuple).install(monkeypatch, MODULES[version])
    kernel = LoadedFlash(load_package(version))
    documents = rows_of_documents(24) if has_documents else None
    check_against_eager(kernel, qkv(), window_tokens=window_tokens, documents=documents)
    activated, ragged = hook
    if version == 4:
        assert activated == ["FA4"]
        cut = window_tokens in (1, 7)
        assert len(ragged) == (2 if has_documents or cut else 0)  # else torch's own flash, which the hook replaces
    else:
        assert fake.calls == ["ragged" if has_documents else "dense"] * 2


def test_torch_before_the_hook_is_told_apart(monkeypatch):
    hopper(monkeypatch)
    FakeFlash().install(monkeypatch, MODULES[4])
    monkeypatch.setattr(torch.nn.attention, "list_flash_attention_impls", lambda: ["FA3"])
    with pytest.raises(EnvironmentProblem, match=r"attention\.version=4 needs a torch with its hook"):
        load_package(4)


def test_version_4_alone_is_not_taken_for_version_2(monkeypatch, tmp_path):
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "cute" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in MODULES.values():
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert is_installed("flash_attn.cute")
    assert not is_installed("flash_attn")
    monkeypatch.delitem(sys.modules, "flash_attn")


def test_a_package_built_for_another_torch_is_one_line(monkeypatch, tmp_path):
    hopper(monkeypatch, (8, 0))
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text('raise ImportError("undefined symbol: _ZN3c10")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    with pytest.raises(EnvironmentProblem, match=r"flash_attn is installed and cannot be imported \(undefined symbol"):
        load_package(None)
