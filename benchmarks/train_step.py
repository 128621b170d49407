"""One optimizer step under the same ruler: our bare loop, our full Trainer, and the peers that can run beside them.

One model shape, the same tokens, as many of them a step, fused AdamW, clipping at 1.0, one precision. Each loop lives
in a process of its own and they take turns of a few steps, so that what else the machine does meets them alike; on a
GPU, which does not hold them all, two at a time, one of them our Trainer. A CPU is timed by CPU seconds of the loop's
process, a GPU by CUDA events. Peers come from a folder of checkouts.

    python benchmarks/train_step.py --peers CHECKOUTS                       # this CPU, eager and compiled
    python benchmarks/train_step.py --device cuda --peers CHECKOUTS         # a GPU, GPT-2 124M's shape; no network

Needs beside the checkouts what those import: accelerate and transformers for hugging_face, jsonargparse for litgpt.
"""

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.train_step_loops.loops import LOOPS
from benchmarks.train_step_loops.ruler import measured_rows
from benchmarks.train_step_loops.table import markdown, page
from benchmarks.train_step_loops.task import Task
from lmtrain.accounting.hardware import find_device
from lmtrain.data.shards import open_dataset
from lmtrain.data.synthetic import synthetic
from lmtrain.doctor.measure import measure_gpu
from lmtrain.precision.cpu_features import cpu_name

RESULTS = Path(__file__).parent / "results"
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


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", default="", help="folder of checkouts: nanoGPT, litgpt, nanochat, OLMo-core, torchtitan"
    )
    parser.add_argument("--loops", nargs="+", default=list(LOOPS), choices=list(LOOPS), help="which take part")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", choices=list(SHAPES), help="small on a CPU, gpt2_124m on a GPU")
    parser.add_argument("--sequences", type=positive, help="sequences a step, in place of the shape's")
    parser.add_argument("--precision", choices=("fp32", "bf16_mixed"), help="fp32 on a CPU, bf16_mixed on a GPU")
    parser.add_argument("--modes", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--starts", type=positive, default=1, help="processes of each loop, one after another")
    parser.add_argument("--rounds", type=positive, default=15, help="turns of each process")
    parser.add_argument("--turn-steps", type=positive, default=20, help="optimizer steps of a turn")
    parser.add_argument("--warm-up-steps", type=positive, default=20, help="before the first turn")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads of each loop")
    parser.add_argument(
        "--hardware", help="word for the results' file names, such as zen4_2cores; without it no file is written"
    )
    return parser.parse_args()


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
    for _ in range(repeats):
        began = time.process_time()
        torch.mm(left, right)
        best = min(best, time.process_time() - began)
    return 2 * side**3 / best


def main() -> int:
    """Measure, print the tables, and keep them where `--hardware` names the machine."""
    arguments = parse()
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    scratch = Path(tempfile.mkdtemp(prefix="train-step-"))
    try:
        task = make_task(arguments, scratch)
        peak_flops, matmul_flops, device = peaks(task)
        shown = {
            name: value
            for name, value in vars(task).items()
            if name not in ("data_root", "tokens_file", "peers", "scratch")
        }
        report |= {"device": device, "peak_flops": peak_flops, "matmul_flops": matmul_flops, "task": shown, "modes": {}}
        for mode in arguments.modes:
            told = replace(task, is_compiled=mode == "compiled")
            found = measured_rows(
                arguments.loops,
                told,
                starts=arguments.starts,
                rounds=arguments.rounds,
                tell=lambda line: print(line, file=sys.stderr, flush=True),
                peak_flops=peak_flops,
                matmul_flops=matmul_flops,
                in_pairs=task.device == "cuda",
            )
            report["modes"][mode] = list(found)
            print(f"## {mode}\n\n{markdown(report['modes'][mode])}\n", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if arguments.hardware:
        keep(report, arguments)
    return 0


def keep(report: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Write the JSON and the page of tables."""
    stem = f"train_step_{arguments.hardware}_{time.strftime('%Y%m')}"
    (RESULTS / f"{stem}.json").write_text(json.dumps(report, indent=1) + "\n")
    words = ["CHECKOUTS" if word == arguments.peers else word for word in sys.argv[1:]]  # no path of one machine
    (RESULTS / f"{stem}.md").write_text(page(report, command=" ".join(["python benchmarks/train_step.py", *words])))
    print(f"{RESULTS.name}/{stem}.json, {stem}.md")


if __name__ == "__main__":
    sys.exit(main())
