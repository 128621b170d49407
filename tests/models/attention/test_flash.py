import sys

import pytest
import torch

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.missing_package import install_command
from lmtrain.models.attention.base import KernelTarget
from lmtrain.models.attention.flash import Flash, LoadedFlash, load_package
from tests.models.attention.fake_flash import FakeFlash, hopper
from tests.models.attention.kernel_checks import check_against_eager, qkv, rows_of_documents


@pytest.fixture
def kernel(monkeypatch):
    hopper(monkeypatch)
    FakeFlash().install(monkeypatch, "flash_attn")
    return LoadedFlash(load_package(2))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"device_type": "cpu"}, "attention=flash needs an NVIDIA GPU, and this is cpu. Did you mean attention=auto"),
        ({"dtype": torch.float32}, "attention=flash takes bf16 or fp16 .* got float32.*attention=sdpa"),
        ({"head_width": 512}, "heads up to 256 wide in multiples of 8, got bfloat16 and 512"),
        ({"head_width": 20}, "multiples of 8, got bfloat16 and 20"),
    ],
)
def test_an_unfit_place_is_refused_before_a_package_is_looked_for(place, message):
    with pytest.raises(ConfigurationError, match=message):
        Flash().fitted(KernelTarget(**({"device_type": "cuda", "dtype": torch.bfloat16} | place)))


MODULES = {2: "flash_attn", 3: "flash_attn_interface"}


@pytest.mark.parametrize(
    ("capability", "installed", "chosen"),
    [
        ((8, 0), (2, 3), "flash_attn)"),
        ((9, 0), (2, 3), "flash_attn_interface"),
        ((9, 0), (2,), "flash_attn)"),
        ((10, 0), (2, 3), "flash_attn)"),
    ],
)
def test_the_best_installed_version_that_the_gpu_runs_is_taken(monkeypatch, capability, installed, chosen):
    hopper(monkeypatch, capability)
    for version in installed:
        FakeFlash().install(monkeypatch, MODULES[version])
    for version in {*MODULES} - {*installed}:
        monkeypatch.setitem(sys.modules, MODULES[version], None)
    assert chosen in load_package(None).name


def test_a_missing_package_is_one_line_with_what_to_do(monkeypatch):
    hopper(monkeypatch)
    for name in MODULES.values():
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EnvironmentProblem) as missing:
        load_package(None)
    assert str(missing.value) == (
        "attention=flash needs the package flash_attn_interface or flash_attn:"
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


@pytest.mark.parametrize("window_tokens", [None, 1, 7, 24, 100])
@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize(("version", "as_tuple"), [(2, False), (3, True)])
def test_every_version_is_called_as_documented(monkeypatch, version, as_tuple, window_tokens, has_documents):
    hopper(monkeypatch)
    fake = FakeFlash(as_tuple=as_tuple).install(monkeypatch, MODULES[version])
    kernel = LoadedFlash(load_package(version))
    documents = rows_of_documents(24) if has_documents else None
    check_against_eager(kernel, qkv(), window_tokens=window_tokens, documents=documents)
    assert fake.calls == ["ragged" if has_documents else "dense"] * 2
