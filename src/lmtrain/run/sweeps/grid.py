"""A grid of trials, from -m without a search: all are known, and checked, before the first one trains.

The file is in runs/NAME with run.name=NAME, else in runs/sweep-ID next to the runs.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from lmtrain.errors import ConfigurationError
from lmtrain.run.execution.start import prepare_data
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.runners import Runner
from lmtrain.run.sweeps.search import run_to_its_end, runner_of
from lmtrain.run.sweeps.search_lines import SearchLines
from lmtrain.run.sweeps.sweep import Sweep
from lmtrain.search.search_settings import SearchSettings
from lmtrain.tracking.redaction import redact_override
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial, held_sweep, read_sweep


def grid_folder(trial: Job) -> Path:
    """Return the folder of a grid's sweep.json, jobs and consoles."""
    return Path(trial.root) / (trial.config.run.name or str(trial.sweep))


def run_grid(jobs: Sequence[Job], settings: SearchSettings) -> int:
    """Train a grid's trials that have not finished, and return the worst exit code, or a stop's."""
    folder = grid_folder(jobs[0])
    with held_sweep(folder):
        if settings.parallel > 1:
            prepare_data(jobs[0])
        sweep = grid_of(jobs, settings, runner_of(jobs[0].config, settings, folder))
        return run_to_its_end(sweep, jobs[0])


def grid_of(jobs: Sequence[Job], settings: SearchSettings, runner: Runner) -> Sweep:
    """Return the sweep of some jobs, which adds its trials to those of earlier grids of its name."""
    folder = grid_folder(jobs[0])
    shared = set(jobs[0].overrides).intersection(*(job.overrides for job in jobs))
    fixed = [*jobs[0].kept_flags, *(redact_override(word) for word in jobs[0].overrides if word in shared)]
    command = f"{jobs[0].program} -m {shlex.join(fixed)}"
    new = SweepFile(
        name=folder.name, kind="grid", metric=settings.metric, fingerprint=str(jobs[0].sweep), command=command
    )
    file = read_sweep(folder) or new
    if file.kind != "grid":
        raise ConfigurationError(f"{folder} is a search; give the grid another run.name.")
    file.fingerprint, file.command = new.fingerprint, new.command
    known = {trial.runs[0].folder: trial for trial in file.trials}
    by_folder = {os.path.relpath(job.folder, folder): job for job in jobs}
    waiting: list[SweepTrial] = []
    for place, job in by_folder.items():
        trial = known.get(place)
        if trial is not None and trial.state == "finished" and job.config.resume != "never" and job.folder.exists():
            continue
        words = [redact_override(word).lstrip("+") for word in job.overrides if word not in shared]
        values = {key: value for key, _, value in (word.partition("=") for word in words)}
        run = SweepRun(folder=place, seed=job.config.seed)
        number = len(file.trials) if trial is None else trial.number
        again = SweepTrial(number=number, values=values, runs=[run])
        file.trials[number : number + 1] = [again]
        waiting.append(again)
    return Sweep(
        settings=settings,
        num_trials=len(jobs),
        folder=folder,
        sweep=file,
        make_job=lambda _, run: by_folder[run.folder],
        runner=runner,
        lines=SearchLines(
            f"{jobs[0].config.run.root}/{folder.relative_to(jobs[0].root)}",
            jobs[0].program,
            [word for word in fixed if not word.startswith("run.name=")],
        ),
        given=waiting,
    )
