"""From typing a command to its answer, or to the end of the first optimizer step: ours and two peers, in turns.

    python benchmarks/questions/start_up.py --rounds 3 --peer-python VENV/bin/python --litgpt CHECKOUT --hardware WORD

CPU seconds (of a process and its children) and seconds on the clock, medians. "Cold" begins with empty compile caches,
once; it fills those of the warm starts, of which one turn more is made and not counted. Python's bytecode is there, as
pip leaves it (`python -m compileall` after uv). Every model is a plain Llama of `model=llama_tiny`'s shape by AdamW in
fp32, and ours once more as it comes; validation before the first step is off, as peers have none. With `--folder` what
was measured cold stays, so that the same command goes on.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
CHILDREN = PROJECT / "benchmarks" / "harness" / "start_up_children.py"
RESULTS = PROJECT / "benchmarks" / "results"
OWN_PATH = f"{PROJECT / 'src'}:{PROJECT}"
PLAN = "model=llama_3_2_1b"
TRAIN = ["resume=never", "callbacks.validation=null"]
# A plain Llama by AdamW in fp32, as the peers have it; our defaults learn faster and trace longer.
AS_PEERS = [
    *("~model.qk_norm", "~model.qk_norm_scale", "~model.embedding_skip", "~model.embedding_smear", "~model.key_smear"),
    *("~model.num_bigram_buckets", "~model.value_embedding_layers", "model.activation=swiglu"),
    *("optimizer=adamw", "precision=fp32"),
]
QUESTIONS = {
    "`python train.py --help`": ["train.py", "--help"],
    "`python train.py --cfg job`": ["train.py", "--cfg", "job"],
    f"`lmtrain plan {PLAN}`": ["-m", "lmtrain.cli", "plan", PLAN],
    **{
        f"`python train.py {word}` (refused)": ["train.py", word]
        for word in ("optimzer=adamw", "optimizer.lrr=1", "batch.context_tokens=banana", "model.width=-3")
    },
}

COLD = ", cold"


@dataclass(frozen=True)
class Start:
    """One measured start: seconds on the clock, of the CPU, and of the CPU at the end of each phase."""

    clock: float
    cpu: float
    phases: dict[str, float]


Starts = Mapping[str, Sequence[Start]]


def markdown(starts: Starts) -> str:
    """Write two tables: every start, and those that train by phase."""
    lines = ["| start | CPU s | clock s | measured |", "|---|---:|---:|---:|"]
    for label, rows in starts.items():
        cpu, clock = (statistics.median(getattr(row, name) for row in rows) for name in ("cpu", "clock"))
        lines.append(f"| {label} | {cpu:.2f} | {clock:.2f} | {len(rows)} |")
    lines += ["", "| CPU seconds of each phase | |", "|---|---|"]
    for label, rows in trained(starts).items():
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases(rows).items())
        lines.append(f"| {label} | {parts} |")
    return "\n".join(lines)


def trained(starts: Starts) -> dict[str, Sequence[Start]]:
    """Return the starts that made a step."""
    return {label: rows for label, rows in starts.items() if rows[0].phases}


def phases(rows: Sequence[Start]) -> dict[str, float]:
    """Return the CPU seconds of each phase: medians of their ends, one taken from the next."""
    ends = {name: statistics.median(row.phases[name] for row in rows) for name in rows[0].phases}
    begins = [0.0, *ends.values()]
    return {name: max(0.0, end - begin) for (name, end), begin in zip(ends.items(), begins, strict=False)}


def as_json(starts: Starts) -> dict[str, Any]:
    """Return all that was measured, as plain values."""
    return {
        label: [{"clock_seconds": row.clock, "cpu_seconds": row.cpu, "cpu_at_end_of": row.phases} for row in rows]
        for label, rows in starts.items()
    }


@dataclass(frozen=True)
class Contender:
    """One way to train: its interpreter, what it is called in start_up_children.py, its words and its import path."""

    python: str
    name: str
    words: list[str]
    path: str
    is_compiled: bool


def surroundings(path: str, **more: str) -> dict[str, str]:
    """Return the environment of a child, which keeps the bytecode of what it imports, as Python does by default."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": path, **more}


def ask(words: list[str]) -> Start:
    """Run one of our commands that answers without training."""
    before, began = os.times(), time.monotonic()
    subprocess.run([sys.executable, *words], cwd=PROJECT, env=surroundings(OWN_PATH), capture_output=True, check=False)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Start(time.monotonic() - began, cpu, {})


def train(contender: Contender, *, folder: Path, caches: Path) -> Start:
    """Start one trainer and read what it prints at the end of its first step."""
    name = contender.name
    shutil.rmtree(folder / name, ignore_errors=True)
    own = [f"run.root={folder / name}", f"run.cache={caches}"] if name == "ours" else []
    command = [contender.python, str(CHILDREN), name, str(folder / name), *contender.words, *own]
    environment = surroundings(contender.path, TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"))
    began = time.monotonic()
    finished = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    lines = [line.partition("PHASES ")[2] for line in finished.stdout.splitlines() if "PHASES " in line]
    if not lines:
        sys.exit(f"{' '.join(command)} made no step:\n{finished.stderr[-2000:]}")
    told = json.loads(lines[0])
    return Start(told["at"] - began, list(told["cpu"].values())[-1], told["cpu"])


def contenders(arguments: argparse.Namespace) -> dict[str, Contender]:
    """Name each way to train."""
    eager, compiled = [*TRAIN, "compile=none"], [*TRAIN, "compile=auto"]
    ours = partial(Contender, sys.executable, "ours", path=OWN_PATH)
    found = {
        "lmtrain, eager": ours(words=[*AS_PEERS, *eager], is_compiled=False),
        "lmtrain, compiled": ours(words=[*AS_PEERS, *compiled], is_compiled=True),
        "lmtrain, compiled, attention=sdpa": ours(words=[*AS_PEERS, *compiled, "attention=sdpa"], is_compiled=True),
        "lmtrain's defaults, eager": ours(words=eager, is_compiled=False),
        "lmtrain's defaults, compiled": ours(words=compiled, is_compiled=True),
    }
    if arguments.peer_python:
        python = arguments.peer_python
        found |= {
            "Hugging Face Trainer, eager": Contender(python, "hugging_face", [], "", is_compiled=False),
            "Hugging Face Trainer, compiled": Contender(python, "hugging_face", ["compile"], "", is_compiled=True),
        }
    if arguments.peer_python and arguments.litgpt:
        found["litgpt pretrain, compiled"] = Contender(
            arguments.peer_python, "litgpt", [], arguments.litgpt, is_compiled=True
        )
    return found


def caches_of(label: str, folder: Path) -> Path:
    """Return where one way to train keeps what it compiled; torch compiles nothing in a path with a space."""
    return folder / "caches" / "".join(letter if letter.isalnum() else "_" for letter in label)


def cold_starts(known: Path, chosen: dict[str, Contender], *, folder: Path) -> dict[str, list[Start]]:
    """Start each compiled one once with empty caches, except those that an earlier call has measured."""
    content = json.loads(known.read_text()) if known.exists() else {}
    for label, contender in chosen.items():
        if contender.is_compiled and label not in content:
            caches = caches_of(label, folder)
            shutil.rmtree(caches, ignore_errors=True)
            start = train(contender, folder=folder, caches=caches)
            content[label] = [start.clock, start.cpu, start.phases]
            known.write_text(json.dumps(content))
            tell(label + COLD, start)
    return {label + COLD: [Start(*content[label])] for label in chosen if label in content}


def warm_starts(rounds: int, chosen: dict[str, Contender], *, folder: Path) -> dict[str, list[Start]]:
    """Take turns; the first turn is not counted."""
    starts: defaultdict[str, list[Start]] = defaultdict(list)
    for _ in range(rounds + 1):
        for label, words in QUESTIONS.items():
            starts[label].append(ask(words))
        for label, contender in chosen.items():
            starts[label].append(train(contender, folder=folder, caches=caches_of(label, folder)))
            tell(label, starts[label][-1])
    return {label: rows[1:] for label, rows in starts.items()}


def tell(label: str, start: Start) -> None:
    """Say what was measured as it is."""
    print(f"{label}: {start.cpu:.2f} s CPU, {start.clock:.2f} s", flush=True)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, list[Start]]:
    """Measure everything that was asked for, or what `--only` names."""
    chosen = {label: each for label, each in contenders(arguments).items() if label.startswith(arguments.only)}
    cold = cold_starts(folder / "cold.json", chosen, folder=folder)
    return (warm_starts(arguments.rounds, chosen, folder=folder) if arguments.rounds else {}) | cold


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns that are counted; 0 measures the cold starts alone"
    )
    parser.add_argument("--peer-python", help="interpreter with torch, transformers, accelerate and what litgpt needs")
    parser.add_argument("--litgpt", help="folder of its checkout")
    parser.add_argument("--only", default="", help="how the names of those begin who take part")
    parser.add_argument("--folder", type=Path, help="where caches and what was measured cold stay; none keeps nothing")
    parser.add_argument(
        "--hardware", help="word for the results' file names, such as zen4_2cores; without it no file is written"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.folder or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        starts = measure(arguments, folder)
    table = markdown(starts)
    print(table)
    if arguments.hardware:
        stem = f"start_up_{arguments.hardware}_{time.strftime('%Y%m')}"
        command = f"`python benchmarks/questions/start_up.py --rounds {arguments.rounds}`, both peers given."
        (RESULTS / f"{stem}.md").write_text(f"# Start-up, {arguments.hardware}\n\n{command}\n\n{table}\n")
        (RESULTS / f"{stem}.json").write_text(json.dumps(as_json(starts), indent=1) + "\n")


if __name__ == "__main__":
    main()
