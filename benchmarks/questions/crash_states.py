"""Power cuts and kills at random points of a run's writes: does `resume=auto` find the newest checkpoint, and the rest?

A real run is traced by strace through its saves, killed by SIGKILL in the middle, and traced again to its end. Its
system calls are then made on a simulated disk, to every point between two of them; there the power fails, and what
fsync has not kept may be there, be missing, or be there in part (ALICE's method: harness/reliability/disk.py).
Each such state of the run's folder is written out and read by the code of a real resume, which must find:

- a checkpoint at least as new as the last one promised (its save had returned), every byte of it as it was written
- in metrics.jsonl each step up to there once, with its value
- the run's identity and the settings of its accepted attempt

Of some states real runs go on to the end: losses, weights and optimizer state are those of a run never stopped.

    python benchmarks/questions/crash_states.py --states 10000 --resumes 30 --json crash_states.json
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.harness.reliability import system_calls, warm_starts  # noqa: E402
from benchmarks.harness.reliability.disk import Disk  # noqa: E402
from benchmarks.harness.reliability.outcome import Outcome, difference, read_losses, read_outcome  # noqa: E402
from benchmarks.harness.reliability.system_calls import Change  # noqa: E402
from lmtrain.errors import EnvironmentProblem  # noqa: E402

STEPS: Final = 24
IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a file system without a disk: thousands of small folders
EVERY_STEP: Final = "callbacks.checkpoint.every_steps=1"
KINDS: Final = {
    "in place": [EVERY_STEP],
    "behind, by another process": [EVERY_STEP, "callbacks.checkpoint.background_from_bytes=0"],
    "in shards, by two ranks": [EVERY_STEP, "strategy=fsdp", "trainer.devices=2"],
}
KEPT: Final = (0.0, 0.2, 0.5, 0.8, 1.0)  # shares of the writes not yet safe that reach the disk
Tree = dict[str, bytes | None]


@dataclass(kw_only=True)
class Recording:
    """A run's changes in their order, what was promised after each of them, and an untouched run's outcome."""

    kind: str
    changes: list[Change]
    untouched: Outcome
    losses: dict[int, float]
    run_id: str
    job: Any
    saved: dict[int, Tree] = field(default_factory=dict)  # by step: the files of its checkpoint


def record(kind: str, scratch: Path) -> Recording:
    """Trace a run that is killed once, and one to its end; train one untouched."""
    traced, untouched = scratch / "traced", scratch / "untouched"
    changes = [
        *_trace(kind, traced, scratch / "first.txt", kill_after_step=STEPS // 3),
        *_trace(kind, traced, scratch / "second.txt", kill_after_step=None),
    ]
    subprocess.run(_command(kind, untouched), check=True, stdout=subprocess.DEVNULL, env=_environment())
    run = traced / "a"
    run_id = json.loads((run / "run.json").read_text())["run"]
    outcome = read_outcome(untouched / "a")
    job = warm_starts.compose(_words(kind, traced), num_ranks=_num_ranks(kind))
    return Recording(kind=kind, changes=changes, untouched=outcome, losses=read_losses(run), run_id=run_id, job=job)


def states(recording: Recording, *, number: int, rng: random.Random) -> Iterator[tuple[int, int, Tree]]:
    """Yield so many crashes: the number of changes made, the newest promised step (0: none), and what is left."""
    changes = recording.changes
    points = Counter(rng.randrange(len(changes) + 1) for _ in range(number))
    disk, promised, renamed = Disk(), 0, 0
    for made in range(len(changes) + 1):
        for _ in range(points[made]):
            yield made, promised, disk.after_a_crash(rng, kept=rng.choice(KEPT), in_order=rng.random() < 0.5)
        if made == len(changes):
            return
        change = changes[made]
        disk.apply(change)
        if change.call == "rename" and change.to.startswith("a/checkpoints/step_"):
            renamed = int(change.to.rpartition("_")[2])
            prefix = f"{change.to}/"
            seen = disk.seen()
            recording.saved[renamed] = {
                name.removeprefix(prefix): content for name, content in seen.items() if name.startswith(prefix)
            }
        elif change.call == "fsync" and change.path == "a/checkpoints":
            promised = renamed


def problem_of(recording: Recording, folder: Path, promised: int) -> str | None:
    """Read a state of the run's folder as a resume does, and say what is lost."""
    from lmtrain.run.stored_runs.job import load_job
    from lmtrain.storage.hashed_folder import clear_leftovers
    from lmtrain.tracking.run_folder import RunFolder
    from lmtrain.tracking.run_log import RunLog
    from lmtrain.training.checkpointing.checkpoints import newest_whole

    try:
        facts, _ = newest_whole(folder / "checkpoints")
    except EnvironmentProblem as refusal:
        return f"step {promised} was saved, but {refusal}"
    step = facts.step if facts else 0
    if step < promised:
        return f"step {promised} was saved, and step {step} is the newest"
    if facts and (wrong := _first_difference(facts.path, recording.saved[step])):
        return f"step {step} is read, and its {wrong} is not as it was written"
    if not facts:
        return None
    clear_leftovers(folder / "checkpoints")
    log = RunLog(folder)
    log.truncate_after(step)
    log.close()
    losses = read_losses(folder)
    if losses != {each: recording.losses[each] for each in range(1, step + 1)}:
        missing = sorted(set(range(1, step + 1)) - losses.keys())
        return f"step {step} is read, and metrics.jsonl lacks steps {missing or 'none, but has other values'}"
    if RunFolder(folder).read_identity().get("run") != recording.run_id:
        return f"step {step} is read, and run.json is lost"
    attempt = RunFolder(folder).accepted_attempt()
    if attempt is None or not (attempt / "job.json").is_file() or not load_job(attempt / "job.json").config.values:
        return f"step {step} is read, and the settings of its attempt are lost"
    return None


def resume(recording: Recording, scratch: Path) -> str | None:
    """Run the command again to its end in a folder `a` of `scratch`, and compare."""
    num_ranks = _num_ranks(recording.kind)
    ended = warm_starts.train(recording.job, folder=scratch, num_ranks=num_ranks)
    if ended.code:
        return f"ended with {ended.code}: {ended.said[-1500:]}"
    return difference(read_outcome(scratch / "a"), recording.untouched)


def campaign(asked: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Record each kind of run, crash it, and return the figures."""
    rng, kinds, problems = random.Random(asked.seed), {}, []
    for kind in asked.kinds:
        began = time.process_time()
        here = Path(tempfile.mkdtemp(dir=scratch))
        recording = record(kind, here)
        number, chosen = asked.states // len(asked.kinds), asked.resumes // len(asked.kinds)
        resumed = set(rng.sample(range(number), chosen))
        folder, points, found = here / "states", set[int](), Counter[str]()
        for index, (made, promised, tree) in enumerate(states(recording, number=number, rng=rng)):
            points.add(made)
            _write_out(tree, folder)
            try:
                problem = problem_of(recording, folder / "a", promised)
            except Exception as crash:  # noqa: BLE001  # whatever it is, the person at the resume sees it
                problem = f"the resume ends with {crash!r}"
            if problem is None and index in resumed:
                _write_out(tree, folder)
                problem = resume(recording, folder)
            if problem:
                found[problem] += 1
                problems.append(f"{kind}, after change {made}: {problem}")
        kinds[kind] = {
            "changes": len(recording.changes), "states": number, "different_points": len(points), "resumed": chosen,
            "problems": sum(found.values()), "cpu_seconds": round(time.process_time() - began),
        }  # fmt: skip
        print(kind, json.dumps(kinds[kind]), *found.most_common(5), sep="\n  ", flush=True)
    return {"seed": asked.seed, "kinds": kinds, "problems": problems[:50], "num_problems": len(problems)}


def _trace(kind: str, folder: Path, trace: Path, *, kill_after_step: int | None) -> list[Change]:
    """Run a training under strace, killed by SIGKILL soon after a step's checkpoint, and return its changes."""
    run = folder / "a"
    words = [*system_calls.command(trace), *_command(kind, folder)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=_environment())
    while kill_after_step is not None and process.poll() is None:
        steps = [int(path.name.removeprefix("step_")) for path in (run / "checkpoints").glob("step_*")]
        if steps and max(steps) >= kill_after_step:
            os.kill(int(json.loads((run / "status.json").read_text())["process"]), signal.SIGKILL)
            break
        time.sleep(0.01)
    code = process.wait()
    if kill_after_step is None and code:
        raise RuntimeError(f"the traced run ({kind}) ended with {code}")
    return list(system_calls.read_changes(trace, folder))


def _num_ranks(kind: str) -> int:
    return 2 if "trainer.devices=2" in KINDS[kind] else 1


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def _command(kind: str, folder: Path) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *_words(kind, folder)]


def _words(kind: str, folder: Path) -> list[str]:
    return [*warm_starts.WORDS, *KINDS[kind], f"budget.steps={STEPS}", "run.name=a", f"run.root={folder}"]


def _write_out(tree: Tree, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in tree.items():
        if content is None:
            (folder / name).mkdir(parents=True)
        else:
            (folder / name).write_bytes(content)


def _first_difference(folder: Path, expected: Tree) -> str | None:
    for name, content in expected.items():
        path = folder / name
        if content is not None and (not path.is_file() or path.read_bytes() != content):
            return name
    return None


def main(words: Sequence[str] | None = None) -> int:
    """Run the campaign and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--resumes", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--scratch", type=Path, default=IN_MEMORY if IN_MEMORY.is_dir() else None)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args(words)
    os.environ["OMP_NUM_THREADS"] = "1"
    warm_starts.import_the_trainer()
    with tempfile.TemporaryDirectory(prefix="crash_states_", dir=asked.scratch) as scratch:
        figures = campaign(asked, Path(scratch))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"{figures['num_problems']} problems")
    return 1 if figures["num_problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
