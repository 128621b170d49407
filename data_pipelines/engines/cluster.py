"""The common part of the engines of clusters: a preparation as a list of jobs over files seen by every machine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from data_pipelines.sources.base import Item, Source
from data_pipelines.stages.pieces import Pieces
from data_pipelines.stages.stage import OF_DATATROVE, PipelineJob, Stage, in_turn, key_of, runs_of, silence_datatrove
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.missing_package import require_package


@dataclass(frozen=True)
class ClusterPlan:
    """Jobs to run one after another, and the items afterwards."""

    folder: Path
    jobs: tuple[PipelineJob, ...]
    result: Pieces

    def items(self) -> Iterator[Item]:
        """Yield all items in the order of the source, once the jobs are done."""
        return chain.from_iterable(map(self.result.items, range(self.result.count)))

    def job_folder(self, job: PipelineJob) -> Path:
        """Return the folder of a job's logs and finished tasks."""
        return self.folder / "jobs" / job.name


def _read_and_clean(source: Source, stages: Sequence[Stage], pieces: Pieces, task: int) -> None:
    """Read one share of a source, and send it through the stages of single documents."""
    num_pieces = source.num_pieces()
    first, end = (share * num_pieces // pieces.count for share in (task, task + 1))
    pieces.write(task, in_turn(stages, chain.from_iterable(map(source.piece, range(first, end)))))


def plan_jobs(source: Source, stages: Sequence[Stage], folder: Path, *, num_tasks: int) -> ClusterPlan:
    """Return the jobs for a source and its stages, with `num_tasks` reading tasks, or as many as the source has pieces.

    Raises:
        ConfigurationError: A stage of single documents comes after one of the corpus.
    """
    first, *later = runs_of(stages)
    num_read = max(1, min(num_tasks, source.num_pieces()))
    folder = folder / f"{num_read}_pieces_{key_of(stages)}"
    pieces = Pieces(folder / "pieces", num_read)
    jobs = [PipelineJob("read_and_clean", pieces.count, partial(_read_and_clean, source, first, pieces))]
    for number, (stage, *_) in enumerate(later):
        if stage.scope == "document":
            name = type(stage).__name__
            raise ConfigurationError(
                f"deduplicate: {name} must come before the stages over all documents; use +cleaning."
            )
        place = folder / f"{number}_{stage.fingerprint_parts()['stage']}"
        jobs += stage.jobs(pieces, place)
        pieces = pieces.without(partial(stage.removed, place))
    return ClusterPlan(folder, tuple(jobs), pieces)


class ClusterEngine(ABC):
    """Stages as jobs of datatrove's executors."""

    def __init__(self, option: str, *, num_tasks: int) -> None:
        """Divide reading into `num_tasks`."""
        require_package(f"engine={option}", *OF_DATATROVE, extra="data")
        self._num_tasks = num_tasks

    def __call__(self, source: Source, stages: Sequence[Stage], /, *, folder: Path) -> Iterator[Item]:
        """Yield the source's items in order, each document through all stages or dropped with a reason."""
        silence_datatrove()
        plan = plan_jobs(source, stages, folder.absolute(), num_tasks=self._num_tasks)
        self._run(plan)
        yield from plan.items()

    @abstractmethod
    def _run(self, plan: ClusterPlan) -> None:
        """Run all jobs to their end."""


@dataclass(frozen=True)
class Task:
    """A pipeline of one step: it runs our task of datatrove's rank and passes nothing on."""

    run: Callable[[int], object]

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        """Run the task of this rank."""
        del data, world_size
        self.run(rank)


def require_finished(job: PipelineJob, executor: Any, folder: Path) -> None:
    """Refuse to go on without every task."""
    missing = executor.get_incomplete_ranks(skip_completed=True)
    if missing:
        msg = f"{len(missing)} of {job.num_tasks} tasks of {job.name} did not finish (the first is {missing[0]})"
        raise EnvironmentProblem(f"{msg}; their output is in {folder}. The same command again runs only those.")
