"""From typing a command to its answer, or to the end of the first optimizer step: ours and two peers, in turns.

    python benchmarks/start_up.py --rounds 3 --peer-python VENV/bin/python --litgpt CHECKOUT --hardware zen4_2cores

CPU seconds (of a process and its children) and seconds on the clock, medians; "cold" begins with empty compile caches.
The model is `model=llama_tiny`'s shape on prepared data; validation before the first step is off, as peers have none.
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
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
CHILDREN = Path(__file__).with_name("start_up_children.py")
QUESTIONS = {
    "`python train.py --help`": ["train.py", "--help"],
    "`python train.py --cfg job`": ["train.py", "--cfg", "job"],
    "`lmtrain plan model=llama_3_2_1b`": ["-m", "lmtrain.cli", "plan", "model=llama_3_2_1b"],
    "`python train.py optimizer.lrr=1` (refused)": ["train.py", "optimizer.lrr=1"],
}


@dataclass(frozen=True)
class Start:
    """One measured start: seconds on the clock, of the CPU, and of the CPU at the end of each phase."""

    clock: float
    cpu: float
    phases: dict[str, float]


def ask(words: list[str]) -> Start:
    """Run one of our commands that answers without training."""
    before, began = os.times(), time.time()
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"}
    subprocess.run([sys.executable, *words], cwd=PROJECT, env=environment, capture_output=True, check=False)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Start(time.time() - began, cpu, {})


def train(python: str, name: str, words: list[str], *, path: str, scratch: Path, caches: Path) -> Start:
    """Start one trainer and read what it prints at the end of its first step."""
    began = time.time()
    environment = {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(caches)}
    command = [python, str(CHILDREN), name, str(scratch / name), *words]
    finished = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    lines = [line.partition("PHASES ")[2] for line in finished.stdout.splitlines() if "PHASES " in line]
    if not lines:
        sys.exit(f"{' '.join(command)} made no step:\n{finished.stderr[-2000:]}")
    told = json.loads(lines[0])
    return Start(told["at"] - began, list(told["cpu"].values())[-1], told["cpu"])


def contenders(arguments: argparse.Namespace, scratch: Path) -> dict[str, tuple[str, str, list[str], str, bool]]:
    """Name each way to train: label -> interpreter, child, words, import path, whether caches start empty."""
    own = f"{PROJECT / 'src'}:{PROJECT}"
    words = [f"run.root={scratch / 'runs'}", "resume=never", "callbacks.validation=null", "logger=none"]
    found = {
        "lmtrain, eager": (sys.executable, "ours", [*words, "compile=none"], own, False),
        "lmtrain, compiled, warm": (sys.executable, "ours", [*words, "compile=auto"], own, False),
        "lmtrain, compiled, cold": (sys.executable, "ours", [*words, "compile=auto"], own, True),
    }
    if arguments.peer_python:
        found |= {
            "Hugging Face Trainer, eager": (arguments.peer_python, "hugging_face", [], "", False),
            "Hugging Face Trainer, compiled, warm": (arguments.peer_python, "hugging_face", ["compile"], "", False),
        }
    if arguments.peer_python and arguments.litgpt:
        found["litgpt pretrain, compiled, warm"] = (arguments.peer_python, "litgpt", [], arguments.litgpt, False)
        found["litgpt pretrain, compiled, cold"] = (arguments.peer_python, "litgpt", [], arguments.litgpt, True)
    return found


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, list[Start]]:
    """Take turns; a first, unmeasured start of each warm one fills its caches."""
    starts: defaultdict[str, list[Start]] = defaultdict(list)
    for number in range(arguments.rounds + 1):
        for label, words in QUESTIONS.items():
            starts[label].append(ask(words))
        for label, (python, name, words, path, is_cold) in contenders(arguments, scratch).items():
            if is_cold and number > arguments.cold_rounds:
                continue
            word = label.replace(",", "").replace(" ", "_")
            caches = scratch / "caches" / word
            if is_cold:
                shutil.rmtree(caches, ignore_errors=True)
            place = [f"run.name={word}", f"run.cache={caches}"]
            given = [*words, *place] if name == "ours" else words
            starts[label].append(train(python, name, given, path=path, scratch=scratch, caches=caches))
            print(label, f"{starts[label][-1].cpu:.2f} s CPU, {starts[label][-1].clock:.2f} s", flush=True)
    return {label: rows[1:] for label, rows in starts.items()}


def markdown(starts: dict[str, list[Start]]) -> str:
    """Write two tables: every start, and ours by phase."""
    lines = ["| start | CPU s | clock s | measured |", "|---|---:|---:|---:|"]
    for label, rows in starts.items():
        cpu, clock = (statistics.median(getattr(row, name) for row in rows) for name in ("cpu", "clock"))
        lines.append(f"| {label} | {cpu:.2f} | {clock:.2f} | {len(rows)} |")
    lines += ["", "CPU seconds of each phase:", ""]
    for label, rows in starts.items():
        if not rows[0].phases:
            continue
        medians = {name: statistics.median(row.phases[name] for row in rows) for name in rows[0].phases}
        ends = [0.0, *medians.values()]
        parts = (f"{name} {end - begin:.2f}" for name, begin, end in zip(medians, ends, ends[1:], strict=False))
        lines.append(f"- {label}: {', '.join(parts)}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold-rounds", type=int, default=1, help="rounds of the starts with empty compile caches")
    parser.add_argument("--peer-python", help="interpreter with torch, transformers, accelerate and what litgpt needs")
    parser.add_argument("--litgpt", help="folder of its checkout")
    parser.add_argument("--hardware", help="word for the results' file name, such as zen4_2cores; none writes no file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        table = markdown(measure(arguments, Path(scratch)))
    print(table)
    if arguments.hardware:
        path = PROJECT / "benchmarks" / "results" / f"start_up_{arguments.hardware}_{time.strftime('%Y%m')}.md"
        command = f"`python benchmarks/start_up.py --rounds {arguments.rounds}`, both peers given"
        head = f"# Start-up, {arguments.hardware}\n\n{command}."
        path.write_text(f"{head}\n\n{table}\n")


if __name__ == "__main__":
    main()
