"""The peers beside us in one run: the loops of train_step at the models' shapes, each with its documented flags.

At 1B and at 124M a peer is held against our Trainer of the same architecture; at nano's depth 24 nanochat's own loop,
with its own optimizer, against ours.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.harness.hopper.cases import CASES
from benchmarks.harness.hopper.loops import TRAINER, compare
from benchmarks.harness.hopper.rows import Bench, Row
from benchmarks.harness.train_step.loops import LOOPS
from benchmarks.harness.train_step.ruler import measured_rows
from benchmarks.harness.train_step.setting import make_task, peaks
from benchmarks.harness.train_step.task import Architecture

NANO: Final = CASES[2]
NANOCHAT: Final = "benchmarks.peers.hopper.nanochat_own"
NANOCHAT_LOOP: Final = NANOCHAT.rpartition(".")[2]
# The shape, that of a toy, what is trained, and sequences and steps of a turn: two loops must fit the device at once.
MODELS: Final[dict[str, tuple[str, str, tuple[Architecture, ...], int, int]]] = {
    "llama_3_2_1b": ("llama_3_2_1b", "llama_toy", ("llama",), 4, 8),
    "gpt2_124m": ("gpt2_124m", "small", ("llama", "gpt2"), 32, 20),
}
NANO_SETTINGS: Final = (("bf16_mixed", "SSSL"), ("bf16_mixed", "L"), ("fp8", "SSSL"))  # L without FlashAttention 3


def rows(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Let our loops and the peers take turns, compiled on a GPU and there two at a time; return a row for each."""
    if not bench.peers:
        for model in (*MODELS, NANO.name):
            yield {"model": model, "not_measured": "no folder of checkouts: --peers FOLDER"}
        return
    for model in MODELS:
        if not bench.cases or model in bench.cases:
            yield from _at_a_shape(model, bench, scratch)
    for precision, pattern in NANO_SETTINGS if bench.wants("peers", NANOCHAT_LOOP, model=NANO.name) else ():
        yield from _beside_nanochat(precision, pattern, bench, scratch)


def _at_a_shape(model: str, bench: Bench, scratch: Path) -> Iterator[Row]:
    shape, toy_shape, architectures, num_sequences, turn_steps = MODELS[model]
    on_gpu = bench.device.type == "cuda"
    arguments = argparse.Namespace(
        device="cuda" if on_gpu else "cpu",
        shape=toy_shape if bench.is_toy else shape,
        sequences=None if bench.is_toy else num_sequences,
        precision=None,
        threads=8 if on_gpu else 1,
        warm_up_steps=10 if on_gpu else 3,
        turn_steps=3 if bench.is_toy else turn_steps,
        peers=bench.peers,
    )
    folder = scratch / f"peers-{model}"
    folder.mkdir(parents=True, exist_ok=True)
    task = replace(make_task(arguments, folder), is_compiled=on_gpu)
    peak, matmul, _ = peaks(task)
    for row in measured_rows(
        [name for name, loop in LOOPS.items() if loop.architecture in architectures and _takes_part(name, bench)],
        task,
        rounds=3,
        tell=lambda line: print(f"peers, {model}: {line}", flush=True),
        peak_flops=peak,
        matmul_flops=matmul,
        in_pairs=on_gpu,
    ):
        what = {"model": model, "loop": row["loop"]}
        facts = {name: value for name, value in row.items() if name not in ("ready", "ended", "skipped")}
        yield what | facts | ({"not_measured": row["skipped"]} if "skipped" in row else {})


def _takes_part(name: str, bench: Bench) -> bool:
    """Tell whether a loop is asked for, or is our Trainer, beside which each is."""
    return not bench.variants or name in bench.variants or LOOPS[name].module == "trainer"


def _beside_nanochat(precision: str, pattern: str, bench: Bench, scratch: Path) -> Iterator[Row]:
    """Let our Trainer and nanochat's loop take turns at depth 24, one micro-batch a step, with the same windows."""
    what: Row = {"model": NANO.name, "precision": precision, "window_pattern": pattern}
    if bench.is_toy and precision == "fp8":
        yield what | {"not_measured": "fp8 runs on a GPU"}
        return
    words = [f"model.window_pattern={pattern}", *([] if bench.is_toy else [f"precision={precision}"])]
    folder = scratch / f"peers-nano-{precision}-{pattern}"
    steps = 3 if bench.is_toy else 10
    found = compare(NANO, words, [TRAINER, NANOCHAT], bench=bench, scratch=folder, rounds=3, turn_steps=steps)
    ours, theirs = found
    if "step_seconds" in ours and "step_seconds" in theirs:
        ratios = [one / other for one, other in zip(theirs["step_seconds"], ours["step_seconds"], strict=True)]
        theirs["against_trainer"] = {"median": statistics.median(ratios)}
    for row in found:
        yield row | what


def against_fastest(rows: Sequence[Row], *, model: str) -> float | None:
    """Return how much longer than our Trainer's the fastest peer's step takes, turn by turn; None where none ran."""
    ratios = [
        row["against_trainer"]["median"]
        for row in rows
        if row.get("model") == model and row.get("against_trainer") and not _is_ours(row["loop"])
    ]
    return min(ratios, default=None)


def _is_ours(loop: str) -> bool:
    return loop in LOOPS and LOOPS[loop].is_ours
