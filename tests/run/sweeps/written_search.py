"""Searches over runs that are written instead of trained: the folders are real, the processes are not."""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmtrain.errors import EXIT_TERMINATED, ConfigurationError
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.search_lines import SearchLines
from lmtrain.run.sweeps.sweep import Sweep
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import ListedValues, Space
from lmtrain.search.study import open_study
from lmtrain.tracking.run_folder import ask_to_stop, forget_stop, is_asked_to_stop
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial, read_sweep
from tests.configs import config_with

METRIC = "validation/bits_per_byte"
NUM_STEPS = 8
GRID = {"x": ListedValues(values=("1", "2", "3", "4"))}


class Killed(BaseException):
    """The search's process is gone."""


@dataclass
class Written:
    """A run that writes one validation at each look, and stops where it is asked to."""

    folder: Path
    scores: list[float]
    code: int
    step: int
    end: int
    stopped: int = EXIT_TERMINATED

    def exit_code(self) -> int | None:
        while self.step < self.end and not is_asked_to_stop(self.folder):
            self.step += 2
            line = {"time": 0, "step": self.step, "tokens": 0, "metrics": {METRIC: self.scores[self.step // 2 - 1]}}
            with (self.folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            return None
        if self.step < NUM_STEPS:
            return self.stopped
        return self.code

    def stop(self, number: int) -> None:
        assert number == signal.SIGTERM
        ask_to_stop(self.folder)


@dataclass
class WritingRunner:
    """Write runs: `score` gives a run's four validations by its words, or an exception of its process."""

    score: Callable[[dict[str, str]], list[float] | BaseException]
    started: list[tuple[str, int]] = field(default_factory=list)
    stopped: int = EXIT_TERMINATED

    def start(self, job: Job, job_path: Path, *, slot: int) -> Written:
        assert json.loads(job_path.read_text())["overrides"] == job.overrides
        values = dict(word.split("=") for word in job.overrides)
        scores = self.score(values)
        self.started.append((job.name.rpartition("/")[2], slot))
        if isinstance(scores, Killed):
            raise scores
        attempt = job.folder / "attempts" / str(1 + len([*job.folder.glob("attempts/*")]))
        attempt.mkdir(parents=True)
        if isinstance(scores, BaseException):
            error = {"message": str(scores), "kind": type(scores).__name__}
            (attempt / "rank0.error.json").write_text(json.dumps(error))
            return Written(job.folder, [], 3, NUM_STEPS, NUM_STEPS)
        forget_stop(job.folder)
        (job.folder / "plan.json").write_text(json.dumps({"horizon": {"steps": NUM_STEPS}}))
        log = job.folder / "metrics.jsonl"
        step = json.loads(log.read_text().splitlines()[-1])["step"] if log.exists() else 0
        return Written(job.folder, scores, 0, step, NUM_STEPS, self.stopped)


def flat(level: Callable[[dict[str, str]], float]) -> Callable[[dict[str, str]], list[float]]:
    return lambda values: [level(values)] * 4


def searching(
    root: Path,
    runner: Any,
    *,
    space: Space = GRID,
    num_trials: int = 4,
    **settings: Any,
) -> Sweep:
    folder = root / "s"
    folder.mkdir(parents=True, exist_ok=True)
    asked = SearchSettings(**{"sampler": "grid", **settings})
    new = SweepFile(name="s", kind="search", metric=METRIC, fingerprint="f", command="c")

    def make_job(trial: SweepTrial, run: SweepRun) -> Job:
        words = [*trial.words, f"seed={run.seed}"]
        if "x=refused" in words:
            raise ConfigurationError("x=refused is no number.")
        return Job(config=config_with(values={}), overrides=words, name=f"s/{run.folder}", root=str(root))

    return Sweep(
        settings=asked,
        seeds=range(asked.seeds),
        num_trials=num_trials,
        folder=folder,
        sweep=read_sweep(folder) or new,
        study=open_study(folder, space, asked),
        make_job=make_job,
        runner=runner,
        lines=SearchLines("runs/s", "python train.py", []),
    )


def recorded(root: Path) -> SweepFile:
    found = read_sweep(root / "s")
    assert found is not None
    return found
