"""One optimizer step under the same ruler: our bare loop, our full Trainer, and the peers that can run beside them.

One model shape, the same tokens, as many of them a step, fused AdamW, clipping at 1.0, one precision. Each loop lives
in a process of its own and they take turns of a few steps, so that what else the machine does meets them alike; on a
GPU, which does not hold them all, two at a time, one of them our Trainer. A CPU is timed by CPU seconds of the loop's
process, a GPU by CUDA events. Peers come from a folder of checkouts.

    python benchmarks/questions/train_step.py --peers CHECKOUTS                  # this CPU, eager and compiled
    python benchmarks/questions/train_step.py --device cuda --peers CHECKOUTS    # a GPU, GPT-2 124M's shape; no network

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

import torch

from benchmarks.harness.train_step.loops import LOOPS
from benchmarks.harness.train_step.ruler import measured_rows
from benchmarks.harness.train_step.setting import SHAPES, make_task, peaks, positive
from benchmarks.harness.train_step.table import markdown, page

RESULTS = Path(__file__).parents[1] / "results"


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
    (RESULTS / f"{stem}.md").write_text(
        page(report, command=" ".join(["python benchmarks/questions/train_step.py", *words]))
    )
    print(f"{RESULTS.name}/{stem}.json, {stem}.md")


if __name__ == "__main__":
    sys.exit(main())
