import pytest
import torch
from torch._dynamo.testing import CompileCounter

from lmtrain.errors import ConfigurationError
from lmtrain.models.attention.base import KernelTarget
from lmtrain.models.attention.flash import Flash, LoadedFlash, load_package
from tests.models.attention.fake_flash import FakeFlash, hopper
from tests.models.attention.kernel_checks import qkv, rows_of_documents

H100 = KernelTarget(device_type="cuda", dtype=torch.bfloat16)


@pytest.fixture
def kernel(monkeypatch):
    hopper(monkeypatch)
    FakeFlash().install(monkeypatch, "flash_attn")
    return LoadedFlash(load_package(2))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"device_type": "cpu"}, "attention=flash needs an NVIDIA GPU, and this is cpu; nearest valid: attention=auto"),
        ({"dtype": torch.float32}, "bf16 or fp16, not float32: take such a precision, or attention=sdpa"),
        ({"head_width": 512}, "heads up to 256 wide in multiples of 8, and these are 512"),
        ({"head_width": 20}, "multiples of 8, and these are 20"),
    ],
)
def test_an_unfit_place_is_refused_before_a_package_is_looked_for(place, message):
    with pytest.raises(ConfigurationError, match=message):
        Flash().fitted(KernelTarget(**({"device_type": "cuda", "dtype": torch.bfloat16} | place)))


def test_a_fit_place_gets_the_loaded_package(monkeypatch, kernel):
    fitted = Flash(version=2, max_documents_per_row=7).fitted(H100)
    assert fitted.max_documents_per_row == 7
    assert fitted.describe(H100) == "flash: flash-attention 2.8.3 (flash_attn) on cuda"
    assert Flash(version=2).describe(H100) == fitted.describe(H100)


def test_plain_use_on_a_cpu_is_refused_too():
    with pytest.raises(ConfigurationError, match="needs an NVIDIA GPU"):
        Flash()(*qkv())


def test_more_documents_than_there_is_room_for_are_refused(kernel):
    narrow = LoadedFlash(kernel.package, max_documents_per_row=1)
    with pytest.raises(RuntimeError, match=r"raise attention\.max_documents_per_row"):
        narrow(*qkv(), documents=rows_of_documents(24))
    with pytest.raises(ConfigurationError, match=r"attention\.max_documents_per_row=0 is below 1"):
        Flash(max_documents_per_row=0)


def test_windows_are_the_kernel_s_own_and_need_no_preparation(kernel):
    assert kernel.prepare(None, num_tokens=24, windows=(None, 3), device=torch.device("cpu")) is None


def test_borders_are_found_once_for_all_windows(kernel):
    prepared = kernel.prepare(rows_of_documents(24), num_tokens=24, windows=(None, 3), device=torch.device("cpu"))
    assert prepared.parts[None] is prepared.parts[3]


def test_other_documents_compile_nothing_again(kernel):
    torch._dynamo.reset()
    counter = CompileCounter()

    def borders(documents):
        return kernel.prepare(documents, num_tokens=24, windows=(None,), device=documents.device).parts[None]

    compiled = torch.compile(borders, backend=counter, fullgraph=True, dynamic=False)
    shapes = {compiled(rows_of_documents(24, mean_tokens=3 + seed, seed=seed)).shape for seed in range(4)}
    assert shapes == {(2 * 24 + 1,)}
    assert counter.frame_count == 1
