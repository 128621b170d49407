"""A chunk's scores by a kernel: the eager ones, by Triton's interpreter, and its code for a Hopper GPU."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from lmtrain.losses.chunked import AsTheyAre, Rule
from tests.interpreted_kernels import code_for_hopper
from tests.losses.interpreted_scores import check, logits_of

ROOT = Path(__file__).parents[2]
IN_FP8 = SimpleNamespace(gradient_scale=2.0**13, gradient_dtype=torch.float8_e5m2)


def test_the_kernel_s_scores_are_the_eager_ones_by_triton_s_interpreter():
    """In a process of its own: reductions of Triton's library are loaded for the interpreter or for a GPU."""
    script = Path(__file__).with_name("interpreted_scores.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=250, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("as eager") == 17


@pytest.mark.parametrize("has_cap", [False, True])
@pytest.mark.parametrize("gradient", ["*bf16", "*fp8e5"])
def test_the_kernel_compiles_for_a_hopper_gpu_with_accesses_of_16_bytes(gradient, has_cap):
    from lmtrain.losses import score_kernel

    pointers = {"logits": "*bf16", "gradient": gradient, "targets": "*i64", "nats": "*fp32", "log_z": "*fp32"}
    numbers = {"ignore_index": "i32", "z_weight": "fp32", "cap": "fp32", "scale": "fp32"}
    constants = {"NUM_LOGITS": 50304, "HAS_CAP": has_cap, "HAS_GRADIENT": True, "COLUMNS": score_kernel.COLUMNS}
    code = code_for_hopper(score_kernel._score, pointers | numbers, constants)
    assert code.count("ld.global.v4.b32") == 2 * 4  # 32 numbers a thread, read twice
    assert "st.global.v4.b32" in code
    assert "ld.local" not in code


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rounding", [AsTheyAre(), IN_FP8], ids=["bf16", "fp8"])
@pytest.mark.parametrize(("vocab_size", "soft_cap"), [(128256, None), (50304, None), (32768, 15.0), (1001, 3.0)])
def test_the_kernel_on_a_gpu_has_the_eager_scores(vocab_size, soft_cap, rounding):
    rule = Rule(torch.bfloat16, 64, 1e-3, -100, soft_cap, rounding)
    logits, targets = logits_of(64, vocab_size, torch.bfloat16, "cuda")
    check(logits, targets, rule, gradients=True, off_by=1e-3 if rounding is not IN_FP8 else 2e-2)
