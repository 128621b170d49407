"""The gradient of SwiGLU: Triton's kernel by its interpreter, and as it compiles for a Hopper GPU."""

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")

from lmtrain.models import feed_forward
from lmtrain.models.feed_forward import swiglu as swiglu_of
from tests.interpreted_kernels import code_for_hopper, interpreted

KERNEL = "lmtrain.models.swiglu_kernel"


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(feed_forward, "has_kernel", lambda _: True)
    with interpreted(KERNEL):
        yield


def check(gate_up: torch.Tensor, of_product: torch.Tensor, *, off_by: float) -> None:
    """Hold the gradient to autograd's in double precision."""
    swiglu_of(gate_up).backward(of_product)
    exact = gate_up.detach().double().requires_grad_()
    gate, up = exact.chunk(2, dim=-1)
    (gate * gate.sigmoid() * up).backward(of_product.double())
    assert gate_up.grad is not None
    assert exact.grad is not None
    assert (gate_up.grad.double() - exact.grad).norm() <= off_by * exact.grad.norm()


@pytest.mark.parametrize(("dtype", "off_by"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("shape", [(2, 3, 10), (5, 128), (2, 4500), (0, 8)])
def test_the_gradient_is_autograd_s_in_double_precision(on_cpu, shape, dtype, off_by):
    generator = torch.Generator().manual_seed(0)
    gate_up = torch.randn(*shape, generator=generator).mul(3).to(dtype).requires_grad_()
    of_product = torch.randn(*shape[:-1], shape[-1] // 2, generator=generator).to(dtype)
    check(gate_up, of_product, off_by=off_by)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of NumPy, in the interpreter
def test_extreme_numbers_have_torch_s_gradient_and_nan_stays(on_cpu):
    numbers = torch.tensor([0.0, 1.0, -30.0, 120.0, -120.0, 1e30, -1e30, torch.inf, -torch.inf, torch.nan])
    gate_up = torch.cartesian_prod(numbers, numbers).requires_grad_()
    for of_product in (1.0, 1e30, torch.nan):
        gradients = torch.full((len(gate_up), 1), of_product)
        (found,) = torch.autograd.grad(swiglu_of(gate_up), gate_up, gradients)
        (expected,) = torch.autograd.grad(feed_forward._product(gate_up), gate_up, gradients)
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("numbers", ["*bf16", "*fp32"])
def test_the_kernel_compiles_for_a_hopper_gpu_with_accesses_of_16_bytes(numbers):
    from lmtrain.models import swiglu_kernel

    types = dict.fromkeys(("gradient", "gate_up", "of_product"), numbers) | {"width": "i32"}
    code = code_for_hopper(swiglu_kernel._write_gradient, types, {"COLUMNS": swiglu_kernel.COLUMNS})
    for access, tensors in (("ld.global", 3), ("st.global", 2)):
        wide = 2 if numbers == "*bf16" else 4  # 16 numbers of each tensor a thread
        assert code.count(access) == code.count(f"{access}.v4") == tensors * wide


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(3, 10), (64, 4096), (1000, 16384)])
def test_the_kernel_on_a_gpu_is_within_rounding_of_double_precision(shape):
    gate_up = torch.randn(shape, device="cuda").bfloat16().requires_grad_()
    of_product = torch.randn(shape[0], shape[1] // 2, device="cuda").bfloat16()
    check(gate_up, of_product, off_by=5e-3)
