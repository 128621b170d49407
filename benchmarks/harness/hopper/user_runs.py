"""Runs as a user starts them, `python train.py ...` in a process of its own, and what their folder says afterwards."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from lmtrain.tracking.run_log import read_points

ROOT: Final = Path(__file__).parents[3]


def train(words: list[str], *, root: Path, name: str, cache: Path) -> tuple[Path, float]:
    """Train and return the run's folder and the moment it was asked for, in unix seconds.

    Raises:
        RuntimeError: It ended with another code than 0; the message is its last line.
    """
    more = [f"run.root={root}", f"run.name={name}", f"run.cache={cache}", "logger=none", "resume=never"]
    began = time.time()
    process = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *words, *more],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    if process.returncode:
        told = (process.stderr or process.stdout).strip().splitlines() or ["nothing said"]
        raise RuntimeError(f"train.py ended with {process.returncode}: {told[-1][:200]}")
    return root / name, began


def environment() -> dict[str, str]:
    """Return the environment of a process of the harness."""
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD": "1",  # as our own runs have it: a warm start stays warm
    }


def losses(folder: Path) -> dict[int, float]:
    """Return the training loss by step."""
    return {
        point.step: point.metrics["train/loss"]
        for point in read_points(folder / "metrics.jsonl")
        if "train/loss" in point.metrics
    }


def first_step_seconds(folder: Path, began: float) -> float:
    """Return the seconds from asking for a run to the loss of its first step."""
    return min(point.time for point in read_points(folder / "metrics.jsonl") if "train/loss" in point.metrics) - began


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the first rank's events of a name, in order."""
    lines = (folder / "events" / "rank0.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["name"] == name]


def stall_seconds(folder: Path, *, last_step: int) -> float:
    """Return the median time that training stood still for a checkpoint, but for the last one, which it ends with.

    Raises:
        RuntimeError: There was none before the last step.
    """
    stalls = [event["seconds"] for event in events(folder, "checkpoint") if event["step"] < last_step]
    if not stalls:
        raise RuntimeError("no checkpoint was taken before the last step")
    return statistics.median(stalls)


def data_wait_share(folder: Path) -> float:
    """Return the share of the time after the first reading of a run's account that it waited for data.

    Raises:
        RuntimeError: The account has fewer than two readings.
    """
    readings = events(folder, "ledger")
    if len(readings) < 3:
        raise RuntimeError("the run was too short for two readings of its account")
    first, last = readings[1], readings[-2]  # without the compilation before, and what follows training
    kinds = ("compute", "data_wait", "host_overhead", "logging", "communication")
    spent = {kind: last.get(kind, 0.0) - first.get(kind, 0.0) for kind in kinds}
    return spent["data_wait"] / sum(spent.values())
