"""A long run watched from outside: does anything grow over 100,000 steps and a million metric points?

A run of a tiny model, as typed by a person, with every default callback, MLflow, a line of metrics a step, checkpoints
and validation. Every few seconds its processes are asked for their private memory (bytes of no other process), open
handles, threads and CPU seconds. Afterwards a million points, each a line of its own, go through one run log.

    OMP_NUM_THREADS=1 python benchmarks/questions/soak.py --hardware xeon_2cores_202611        # about an hour
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil

from lmtrain.tracking.run_log import LogOffset, Point, RunLog, read_after

RESULTS: Final = Path(__file__).parents[1] / "results"
MIB: Final = 1 << 20
WORDS: Final = (
    *("model=llama_tiny", "model.width=16", "model.num_heads=1", "model.num_layers=1", "model.feed_forward_width=32"),
    *("model.num_bigram_buckets=0", "model.value_embedding_layers=[]", "tokenizer=byte_level", "data=synthetic"),
    *("data.folder.num_tokens=2M", "batch.context_tokens=16", "batch.tokens_per_step=16", "optimizer=adamw"),
    *("compile=none", "precision=fp32", "cluster.peak_flops=1e12", "run.log_every_steps=1", "run.name=soak"),
    *("callbacks.validation.max_tokens=1024", "callbacks.text_samples.num_new_tokens=4", "budget=steps"),
)
SINK: Final = "lmtrain.tracking.mlflow.sink"
# What may differ between the second fifth and the last: a heap's own pieces, one open file, a busy machine's CPU.
MAY_GROW: Final = {"private_mib": 4.0, "handles": 1.0, "threads": 1.0, "cpu_ms": 0.15}


@dataclass(frozen=True)
class Sample:
    """One look at a process: progress in steps (trainer) or values sent (MLflow), CPU seconds since its start."""

    seconds: float
    progress: int
    private_mib: float
    handles: int
    threads: int
    cpu_seconds: float


def soak(folder: Path, *, num_steps: int, every_seconds: float) -> dict[str, list[Sample]]:
    """Train so many steps and return the looks at the trainer and at MLflow's process.

    Raises:
        RuntimeError: The run failed.
    """
    words = [*WORDS, f"budget.steps={num_steps}", f"callbacks.validation.every_steps={max(1, num_steps // 20)}"]
    places = [f"run.root={folder / 'runs'}", f"data.folder.root={folder / 'data'}"]
    command = [sys.executable, "-m", "lmtrain.cli", "train", *words, "callbacks.validation.num_passes=null", *places]
    run = folder / "runs/soak"
    found: dict[str, list[Sample]] = {"trainer": [], "mlflow": []}
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        began = time.monotonic()
        while process.poll() is None:
            time.sleep(every_seconds)
            progress = {"trainer": _last_step(run / "metrics.jsonl"), "mlflow": _bytes_sent(run)}
            for name, each in _processes(process.pid):
                if sample := _look(each, time.monotonic() - began, progress[name]):
                    found[name].append(sample)
    if process.returncode:
        raise RuntimeError(f"the run ended with {process.returncode}:\n{(folder / 'output.txt').read_text()[-2000:]}")
    return found


def _processes(pid: int) -> Iterator[tuple[str, psutil.Process]]:
    try:
        parent = psutil.Process(pid)
        yield "trainer", parent
        yield from (("mlflow", each) for each in parent.children(recursive=True) if SINK in each.cmdline())
    except psutil.NoSuchProcess:
        return


def _look(process: psutil.Process, seconds: float, progress: int) -> Sample | None:
    try:
        private, cpu = process.memory_full_info().uss / MIB, process.cpu_times()
        return Sample(seconds, progress, private, process.num_fds(), process.num_threads(), cpu.user + cpu.system)
    except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
        return None


def _last_step(path: Path) -> int:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            return json.loads(file.read().splitlines()[-1])["step"]
    except (OSError, ValueError, IndexError):
        return 0


def _bytes_sent(run: Path) -> int:
    try:
        return json.loads((run / "mlflow_state.json").read_text())["offset"]
    except (OSError, ValueError):
        return 0


def _in_values(samples: list[Sample], num_values: int) -> list[Sample]:
    """Count progress in values of metrics in place of bytes of their file."""
    return [replace(each, progress=each.progress * num_values // samples[-1].progress) for each in samples]


def log_many(folder: Path, *, num_points: int, num_parts: int = 50) -> list[dict[str, float]]:
    """Append points of four metrics, ten a write, and read each part as MLflow's process does; costs in CPU µs."""
    log, here, place, rows = RunLog(folder), psutil.Process(), LogOffset(0, 0), []
    for part in range(num_parts):
        first, count = part * num_points // num_parts, num_points // num_parts
        began = time.process_time()
        for at in range(first, first + count, 10):
            metrics = {"train/loss": 1.0, "train/gradient_norm": 0.5, "train/lr": 1e-3, "speed/mfu_palm": 0.4}
            log.extend([Point(0.0, step, step * 16, metrics) for step in range(at, at + 10)])
        appended = time.process_time()
        points: list[Point] | None = None
        while points != []:
            points, place = read_after(log.path, place)
        read = time.process_time()
        memory = here.memory_full_info().uss / MIB
        costs = {"append_us": 1e6 * (appended - began) / count, "read_us": 1e6 * (read - appended) / count}
        rows.append({"points": first + count, **costs, "private_mib": memory, "handles": here.num_fds()})
    log.close()
    return rows


def judge(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return a row a quantity: its median in the second fifth of the progress and in the last, and whether it grew."""
    last = samples[-1].progress
    early = [each for each in samples if 0.2 * last <= each.progress <= 0.4 * last]
    late = [each for each in samples if 0.8 * last <= each.progress < last]  # the end itself writes the page
    rows: list[dict[str, Any]] = []
    if not early or not late:
        return rows
    for name, allowed in MAY_GROW.items():
        if name == "cpu_ms":
            first, then = _cpu_ms(early), _cpu_ms(late)
            ok = then <= first * (1 + allowed)
        else:
            first, then = (statistics.median(getattr(each, name) for each in part) for part in (early, late))
            ok = then <= first + allowed
        rows.append({"name": name, "early": first, "late": then, "ok": ok})
    return rows


def _cpu_ms(samples: Sequence[Sample]) -> float:
    done = samples[-1].progress - samples[0].progress
    return 1e3 * (samples[-1].cpu_seconds - samples[0].cpu_seconds) / max(1, done)


def num_values(path: Path) -> int:
    """Count the values of a metrics.jsonl."""
    with path.open() as file:
        return sum(len(json.loads(line)["metrics"]) for line in file)


def main() -> int:
    """Watch, judge, write JSON and a table; 1 where something grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--every-seconds", type=float, default=5.0)
    parser.add_argument("--hardware", default=None, help="writes benchmarks/results/soak_WORD.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        found = soak(Path(name), num_steps=asked.steps, every_seconds=asked.every_seconds)
        values = num_values(Path(name) / "runs/soak/metrics.jsonl")
        found["mlflow"] = _in_values(found["mlflow"], values)
        logged = log_many(Path(name), num_points=asked.points)
    judged = {process: judge(samples) for process, samples in found.items() if samples}
    result = {
        "steps": asked.steps, "values": values, "points": asked.points, "judged": judged, "logged": logged,
        "samples": {process: [asdict(each) for each in samples] for process, samples in found.items()},
    }  # fmt: skip
    if asked.hardware:
        (RESULTS / f"soak_{asked.hardware}.json").write_text(json.dumps(result) + "\n")
    print(f"{asked.steps:,} steps, {values:,} metric values; then {asked.points:,} points in one log")
    for process, rows in judged.items():
        for row in rows:
            verdict = "holds" if row["ok"] else "GREW"
            print(f"{process:8} {row['name']:12} {row['early']:9.3f} -> {row['late']:9.3f}  {verdict}")
    for key in ("append_us", "read_us", "private_mib", "handles"):
        print(f"log      {key:12} {logged[len(logged) // 5][key]:9.2f} -> {logged[-1][key]:9.2f}")
    return 0 if all(row["ok"] for rows in judged.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
