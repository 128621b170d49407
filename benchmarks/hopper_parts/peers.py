"""The peers beside us in one run: the loops of train_step at GPT-2 124M's shape, each with its documented flags."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.hopper_parts.rows import Bench, Row
from benchmarks.train_step import make_task, peaks
from benchmarks.train_step_loops.driver import measure
from benchmarks.train_step_loops.loops import LOOPS
from benchmarks.train_step_loops.table import rows as rows_of

OURS = ("bare", "trainer")


def rows(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Let our two loops and all peers take turns, compiled on a GPU, and return a row for each."""
    if not bench.peers:
        yield {"not_measured": "no folder of checkouts: --peers FOLDER"}
        return
    on_gpu = bench.device.type == "cuda"
    arguments = argparse.Namespace(
        device="cuda" if on_gpu else "cpu",
        shape="small" if bench.is_toy else "gpt2_124m",
        sequences=None,
        precision=None,
        threads=8 if on_gpu else 1,
        warm_up_steps=10 if on_gpu else 3,
        turn_steps=20 if on_gpu else 3,
        peers=bench.peers,
    )
    folder = scratch / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    task = replace(make_task(arguments, folder), is_compiled=on_gpu)
    peak, matmul, _ = peaks(task)
    found = measure(list(LOOPS), task, rounds=3, tell=lambda line: print(f"peers: {line}", flush=True))
    for row in rows_of(found, task, peak_flops=peak, matmul_flops=matmul):
        yield {"not_measured": row["skipped"], "loop": row["loop"]} if "skipped" in row else row


def against_fastest(rows: list[Row]) -> float | None:
    """Return our Trainer's tokens per second over the fastest peer's; None without both."""
    speeds = {row["loop"]: row["tokens_per_second"] for row in rows if "tokens_per_second" in row}
    others = [speed for loop, speed in speeds.items() if loop not in OURS]
    return speeds["trainer"] / max(others) if others and "trainer" in speeds else None
