"""A run small enough for a test: a few seconds from the command to its end, most of them imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import forked

PROJECT = Path(__file__).parents[1]
MODEL = [
    "model.width=32",
    "model.num_heads=1",
    "model.num_layers=2",
    "model.feed_forward_width=64",
    "model.num_bigram_buckets=64",
    "model.value_embedding_layers=[1]",
]
DATA = ["data=synthetic", "data.folder.num_tokens=60000", "tokenizer=byte_level", "tokenizer.vocab_size=512"]
BATCH = ["batch.context_tokens=32", "batch.tokens_per_step=256"]
QUIET = [
    "compile=none",
    "cluster.peak_flops=1e12",
    "precision=fp32",
    "logger=none",
    "callbacks.text_samples.num_new_tokens=4",
]
TINY = [*MODEL, *DATA, *BATCH, *QUIET, "run.log_every_steps=1"]


def command(*words: str, launcher: tuple[str, ...] = ()) -> list[str]:
    """Return the command line of a tiny run."""
    return [sys.executable, *launcher, str(PROJECT / "train.py"), *TINY, *words]


def environment() -> dict[str, str]:
    """Return an environment in which the project's own sources are found, on one thread."""
    paths = [str(PROJECT / "src"), str(PROJECT)]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}  # of a command run here
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def train(folder: Path, *words: str, num_ranks: int = 1) -> "subprocess.CompletedProcess[str]":
    """Run a tiny training in a folder, in forks of a process that has its imports, and return how it ended."""
    return forked.run(
        PROJECT / "train.py", [*TINY, *words], folder=folder, environment=environment(), num_ranks=num_ranks
    )


def start(folder: Path, *words: str, launcher: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run a tiny training in a folder as a person does, `python train.py`, and return how it ended."""
    return subprocess.run(
        command(*words, launcher=launcher),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def losses(run: Path) -> dict[int, float]:
    """Return every step's training loss of a run, refusing a step that is there twice."""
    found: dict[int, float] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        point = json.loads(line)
        if "train/loss" in point["metrics"]:
            assert point["step"] not in found, f"step {point['step']} twice"
            found[point["step"]] = point["metrics"]["train/loss"]
    return found
