"""A job of ours as a pipeline of datatrove's: its executors run numbered tasks anywhere."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipelines.stages.stage import PipelineJob
from lmtrain.errors import EnvironmentProblem


@dataclass(frozen=True)
class Task:
    """A pipeline of one step: it runs our task of datatrove's rank and passes nothing on."""

    run: Callable[[int], object]

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        """Run the task of this rank."""
        del data, world_size
        self.run(rank)


def pipeline_of(job: PipelineJob) -> list[Any]:
    """Return a job as a pipeline."""
    return [Task(job.run)]


def require_finished(job: PipelineJob, executor: Any, folder: Path) -> None:
    """Refuse to go on without every task.

    Raises:
        EnvironmentProblem: Some did not finish.
    """
    missing = executor.get_incomplete_ranks(skip_completed=True)
    if missing:
        msg = f"{len(missing)} of {job.num_tasks} tasks of {job.name} did not finish (the first is {missing[0]})"
        raise EnvironmentProblem(f"{msg}; their output is in {folder}. The same command again runs only those.")
