"""The ruler's shapes, its task and the peaks of this machine."""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.train_step.task import Task
from lmtrain.accounting.machine.hardware import find_device
from lmtrain.data.shards import open_dataset
from lmtrain.data.synthetic import synthetic
from lmtrain.doctor.measure import measure_gpu
from lmtrain.precision.cpu_features import cpu_name
from lmtrain.precision.cpu_products import cpu_matmul_precision, multiplying

# Heads are 64 wide; layers have 12 D^2 matrix parameters where nothing else is said.
SHAPES: dict[str, dict[str, Any]] = {
    "small": {"num_layers": 2, "num_heads": 3, "vocab_size": 1024, "context_tokens": 128, "num_sequences": 2},
    "gpt2_124m": {"num_layers": 12, "num_heads": 12, "vocab_size": 50304, "context_tokens": 1024, "num_sequences": 32,
                  "is_tied": True},
    "llama_3_2_1b": {"num_layers": 16, "num_heads": 32, "num_kv_heads": 8, "gated_width": 8192, "vocab_size": 128256,
                     "context_tokens": 4096, "num_sequences": 8, "is_tied": True},
    "llama_toy": {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "gated_width": 768, "vocab_size": 512,
                  "context_tokens": 128, "num_sequences": 2, "is_tied": True},
}  # fmt: skip


def positive(word: str) -> int:
    """Read a whole number from 1."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is not a whole number from 1")
    return int(word)


def make_task(arguments: argparse.Namespace, scratch: Path) -> Task:
    """Make the data and say what is measured."""
    on_gpu = arguments.device == "cuda"
    shape = dict(SHAPES[arguments.shape or ("gpt2_124m" if on_gpu else "small")])
    if arguments.sequences:
        shape["num_sequences"] = arguments.sequences
    folder = synthetic(root=str(scratch / "data"), vocab_size=shape["vocab_size"])
    (shard,) = folder.glob("**/*train*.ds")
    return Task(
        **shape,
        device=arguments.device,
        precision=arguments.precision or ("bf16_mixed" if on_gpu else "fp32"),
        is_compiled=False,
        threads=arguments.threads,
        warm_up_steps=arguments.warm_up_steps,
        turn_steps=arguments.turn_steps,
        max_steps=10**6,
        data_root=str(scratch / "data"),
        tokens_file=str(shard),
        tokens_dtype=np.dtype(open_dataset(folder).manifest.dtype).newbyteorder("<").str,
        peers=str(Path(arguments.peers).absolute()) if arguments.peers else "",
        scratch=str(scratch),
    )


def peaks(task: Task) -> tuple[float, float, str]:
    """Return the FLOP/s that MFU divides by, those that a matrix product reaches here, and the device's name."""
    if task.device == "cuda":
        measured = measure_gpu()
        word = "bf16" if task.precision == "bf16_mixed" else "tf32"
        known = find_device(measured.name)
        return (
            (known.peak_flops(word) if known else None) or measured.matmul_flops[word],
            measured.matmul_flops[word],
            measured.name,
        )
    rate = matmul_rate(task)
    return rate, rate, f"{cpu_name()}, {task.threads} thread{'s' * (task.threads > 1)}"


def matmul_rate(task: Task, *, side: int = 1536, repeats: int = 20) -> float:
    """Return the best FLOP/s of a square product, by the CPU seconds that the loops are measured by, too.

    By wall time a busy machine lowers it several times over, and a loop then seems to exceed it.
    """
    torch.set_num_threads(task.threads)
    left, right = torch.randn(2, side, side).to(task.dtype)
    best = float("inf")
    with multiplying(cpu_matmul_precision()):  # as our loops do
        for _ in range(repeats):
            began = time.process_time()
            torch.mm(left, right)
            best = min(best, time.process_time() - began)
    return 2 * side**3 / best
