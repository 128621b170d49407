"""The parts of the harness: each takes a machine and a scratch folder and yields rows as they are measured."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.hopper import first_look, peers, speeds, user_runs
from benchmarks.harness.hopper.cases import CASES, Case, composed, last_of_each
from benchmarks.harness.hopper.loops import BARE, TRAINER, WORDS_FILE, compare, run_words, task_of
from benchmarks.harness.hopper.rows import Bench, Row

ONE_B: Final = CASES[0]
# Turns of five seconds and as much before them: a GPU that waited is cool, and faster by 3 % in its next half second.
OVERHEAD_STEPS: Final = {"llama_3_2_1b": 10, "gpt2_124m": 80}
PLAIN: Final = ("attention=sdpa", "loss=cross_entropy", "precision=fp32", "compile=none", "recompute=none")


def overhead(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Let the full Trainer and the bare loop take turns, at half a micro-batch so that both fit the device."""
    for case in CASES[:2]:
        what = {"model": case.name, "loop": "full_trainer"}
        if not bench.wants("overhead", "full_trainer", **what):
            continue
        half = composed(case, is_toy=bench.is_toy)["batch"]["micro_batch_sequences"] // 2
        more = [] if bench.is_toy else [f"batch.micro_batch_sequences={half}"]
        folder, steps = scratch / f"overhead-{case.name}", 3 if bench.is_toy else OVERHEAD_STEPS[case.name]
        found: list[Row] = []

        def both() -> Row:
            loops = [BARE, TRAINER]
            turns: dict[str, Any] = {"rounds": 3, "turn_steps": steps, "warm_up_steps": steps}  # noqa: B023
            found.extend(compare(case, more, loops, bench=bench, scratch=folder, **turns))  # noqa: B023
            return found.pop()  # noqa: B023

        last = bench.measured(what, both)
        yield from [*found, last]


def memory(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Ask `lmtrain plan` what each case takes at its peak; the part `speed` measured what it took."""
    for case, variant in ((case, variant) for case in CASES for variant in ("bf16", "whole_step")):
        what = {"model": case.name, "variant": variant}
        if bench.wants("memory", variant, **what):
            yield bench.measured(what, lambda: _planned(case, variant, bench, scratch))  # noqa: B023


def _planned(case: Case, variant: str, bench: Bench, scratch: Path) -> Row:
    config = composed(case, is_toy=bench.is_toy)
    words = run_words(
        case, config, bench=bench, data=scratch / "data", steps=10**6, is_whole_step=variant == "whole_step"
    )
    cluster = [] if bench.is_toy else ["cluster=h200_1x", f"cluster.device={bench.name}"]
    command = [sys.executable, "-m", "lmtrain.cli", "plan", *words, *cluster, "--json"]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env=user_runs.environment(), cwd=scratch
    )
    if found.returncode > 1:
        raise RuntimeError(found.stderr.strip().splitlines()[-1])
    kinds = json.loads(found.stdout)["memory"]["per_device_bytes"]
    return {"planned_bytes": kinds["total"] - kinds["margin"], "by_kind": kinds}


def data(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Read from a run's own account how long its host waited for data: no less than what the device waited."""
    for case in CASES[:2]:
        steps = 60 if bench.is_toy else 200
        if bench.wants("data", "", model=case.name):
            yield bench.measured({"model": case.name}, lambda: _waited(case, bench, scratch, steps))  # noqa: B023


def _waited(case: Case, bench: Bench, scratch: Path, steps: int) -> Row:
    folder, _ = _train(case, bench, scratch, f"data-{case.name}", steps=steps, more=IDLE)
    return {"data_wait_share": user_runs.data_wait_share(folder)}


def start(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Start the 1B run twice: with an empty compile cache, and with the one that the first start left."""
    cache = scratch / "start-cache"
    for name in ("cold", "warm"):
        what = {"model": ONE_B.name, "start": name}
        if bench.wants("start", name, **what):
            yield bench.measured(what, lambda: _first_step(bench, scratch, name, cache))  # noqa: B023


def _first_step(bench: Bench, scratch: Path, name: str, cache: Path) -> Row:
    more = [*IDLE, "run.log_every_steps=1"]
    folder, began = _train(ONE_B, bench, scratch, f"start-{name}", steps=3, more=more, cache=cache)
    return {"first_step_seconds": user_runs.first_step_seconds(folder, began)}


def checkpoint(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Save the 1B run while it trains, staged and written behind it, and see for how long it stands still."""
    if bench.wants("checkpoint", "", model=ONE_B.name):
        yield bench.measured({"model": ONE_B.name}, lambda: _stalled(bench, scratch))


def _stalled(bench: Bench, scratch: Path) -> Row:
    every, steps = (4, 14) if bench.is_toy else (15, 50)
    more = [
        *(word for word in IDLE if not word.startswith("callbacks.checkpoint")),
        "callbacks.checkpoint.every_seconds=null",
        f"callbacks.checkpoint.every_steps={every}",
        "callbacks.checkpoint.keep_last=1",
        "callbacks.checkpoint.background_from_bytes=1",
    ]
    folder, _ = _train(ONE_B, bench, scratch, "checkpoint", steps=steps, more=more)
    return {"stall_seconds": user_runs.stall_seconds(folder, last_step=steps)}


def curve(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Train the 124M model on real text by the fast path, in fp8, and plainly in fp32, on the same tokens."""
    case, steps = CASES[1], 20 if bench.is_toy else 300
    text = ["data=synthetic"] if bench.is_toy else ["data=prepared", f"data.folder.root={scratch / 'text'}"]
    text += [] if bench.is_toy else ["source=python_stdlib", "tokenizer=bpe", "tokenizer.vocab_size=4096"]
    more = [*IDLE, *text, "run.log_every_steps=1", "optimizer.lr=6e-4"]
    paths = {"plain fp32": [*PLAIN], "fast bf16": [], "fast fp8": ["precision=fp8"]}
    reference: dict[int, float] = {}
    for name, words in paths.items():
        what = {"model": case.name, "path": name, "steps": steps}
        held = [row for row in bench.held.get("curve", ()) if what.items() <= row.items() and "losses" in row]
        if held:
            reference = reference or {int(step): loss for step, loss in held[0]["losses"].items()}
        if not bench.wants("curve", name, **what):
            continue
        row = bench.measured(what, lambda: _curve(case, bench, scratch, name, steps, [*more, *words]))  # noqa: B023
        if "losses" in row:
            reference = reference or row["losses"]
            row["largest_difference"] = largest_difference(row["losses"], reference)
        yield row


def _curve(case: Case, bench: Bench, scratch: Path, name: str, steps: int, words: list[str]) -> Row:
    if bench.is_toy and name.endswith("fp8"):
        raise RuntimeError("fp8 runs on a GPU")
    folder, _ = _train(case, bench, scratch, f"curve-{name.replace(' ', '-')}", steps=steps, more=words)
    return {"losses": user_runs.losses(folder)}


def largest_difference(found: dict[int, float], reference: dict[int, float], *, window: int = 20) -> float:
    """Return by how much the mean loss of a window of steps is off at most, relative to the reference's."""
    steps = sorted(set(found) & set(reference))
    means = [
        (sum(found[step] for step in part) / len(part), sum(reference[step] for step in part) / len(part))
        for part in (steps[first : first + window] for first in range(0, len(steps), window))
    ]
    return max(abs(one - other) / other for one, other in means)


def profile(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Profile the fast path and, before it, plain eager steps; the traces lie in the scratch folder."""
    for case in CASES[:2]:
        for name, words in (("before", ["compile=none", "loss=cross_entropy", "recompute=none"]), ("after", [])):
            what = {"model": case.name, "path": name}
            if bench.wants("profile", name, **what):
                yield bench.measured(what, lambda: _profiled(case, bench, scratch, name, words))  # noqa: B023


def _profiled(case: Case, bench: Bench, scratch: Path, name: str, more: list[str]) -> Row:
    folder = scratch / f"profile-{case.name}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    told = Case(case.name, (*case.words, *more), case.toy)
    config = composed(told, is_toy=bench.is_toy)
    words = run_words(told, config, bench=bench, data=scratch / "data", steps=10**6)
    (folder / WORDS_FILE).write_text(json.dumps(words))
    (folder / "task.json").write_text(json.dumps(asdict(task_of(config, bench, folder, turn_steps=1))))
    label = f"{case.name}-{name}"
    command = [sys.executable, "-m", "benchmarks.peers.hopper.profiles", str(folder / "task.json"), str(scratch), label]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env=user_runs.environment(), cwd=folder
    )
    if found.returncode:
        raise RuntimeError(found.stderr.strip().splitlines()[-1])
    return json.loads((scratch / f"{label}.json").read_text())


def _train(
    case: Case, bench: Bench, scratch: Path, name: str, *, steps: int, more: list[str], cache: Path | None = None
) -> tuple[Path, float]:
    config = composed(case, is_toy=bench.is_toy)
    words = last_of_each([*run_words(case, config, bench=bench, data=scratch / "data", steps=steps), *more])
    (scratch / "runs").mkdir(parents=True, exist_ok=True)
    return user_runs.train(words, root=scratch / "runs", name=name, cache=cache or scratch / "cache")


IDLE: Final = [  # what a run does beside training, which these parts do not ask for
    "callbacks.validation=null",
    "callbacks.text_samples=null",
    "callbacks.checkpoint=null",
]
Part = Callable[[Bench, Path], Iterator[dict[str, Any]]]
PARTS: Final[dict[str, Part]] = {
    **first_look.PARTS,
    "speed": speeds.rows,
    "peers": peers.rows,
    "overhead": overhead,
    "memory": memory,
    "data": data,
    "start": start,
    "checkpoint": checkpoint,
    "curve": curve,
    "profile": profile,
}
NAMES: Final[dict[str, Callable[[], Iterable[str]]]] = {
    "speed": lambda: (variant.name for variant in speeds.VARIANTS),
    "peers": lambda: (*peers.LOOPS, peers.NANOCHAT_LOOP),
    "memory": lambda: ("bf16", "whole_step"),
    "start": lambda: ("cold", "warm"),
    "curve": lambda: ("plain fp32", "fast bf16", "fast fp8"),
    "profile": lambda: ("before", "after"),
}


def require_known(variants: Sequence[str], *, parts: Sequence[str]) -> None:
    """Check that every variant is a row of some of the parts.

    Raises:
        ValueError: One is not; the message has those that are.
    """
    if not variants:
        return
    known = sorted({name for part in parts if part in NAMES for name in NAMES[part]()})
    for variant in variants:
        if variant not in known:
            raise ValueError(f"--variants {variant}: no row of {', '.join(parts)} is called so; there are: {known}")
