import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from lmtrain.models.attention.auto import Auto
from lmtrain.models.attention.base import KernelTarget
from lmtrain.models.attention.blocked import Blocked
from lmtrain.models.attention.eager import Eager
from lmtrain.models.attention.sdpa import SDPA
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


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_a_kernel_of_torch_runs_anywhere_and_says_which_it_is(kernel):
    place = KernelTarget(device_type="cpu", dtype=torch.float32, is_compiled=True)
    assert kernel.fitted(place) is kernel
    assert kernel.describe(place).split(":")[0] in {"eager", "sdpa", "blocked", "auto"}
    assert "cpu" in kernel.describe(place) or kernel.describe(place).startswith("eager")


def test_shapes_in_signatures_are_true():
    """In a process of its own: see checked_shapes.py."""
    script = Path(__file__).with_name("checked_shapes.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("shapes hold, and one that does not is noticed") == 6
