"""Run stages on this machine: the cheap ones here, costly ones in several processes, those over a corpus as jobs."""

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import final

from data_pipelines.processes import num_cores, run_jobs
from data_pipelines.progress import stage as shown_stage
from data_pipelines.sources.base import Item, Source
from data_pipelines.stages.pieces import Pieces, characters_of, cut_into_pieces, until_full
from data_pipelines.stages.stage import PipelineJob, Stage, in_turn, key_of, runs_of
from lmtrain.accounting.options.ranges import require_number
from lmtrain.storage.durable import write_durably

BATCH_CHARACTERS = 1_000_000
TRIAL_CHARACTERS = 4_000_000
FAST_CHARACTERS_PER_SECOND = 20e6  # beyond, handing text to another process costs as much as the work


@final
class LocalEngine:
    """Stages in processes of this machine."""

    def __init__(self, *, num_processes: int | None = None, piece_characters: int = 64_000_000) -> None:
        """`num_processes` 0 does all here; None takes one a core where the first megabytes show the stages to be slow.

        A corpus on disk is cut into pieces of `piece_characters`, one task each.
        """
        require_number("engine.num_processes", num_processes, at_least=0, usual="0")
        self._num_processes = num_processes
        self._piece_characters = piece_characters

    def __call__(self, source: Source, stages: Sequence[Stage], /, *, folder: Path) -> Iterator[Item]:
        """Yield the source's items in order, each document through all stages or dropped with a reason."""
        items: Iterator[Item] = source.documents()
        for number, run in enumerate(runs_of(stages)):
            if run[0].scope == "document":
                items = self._each_alone(items, run)
            elif run[0].scope == "order":
                items = run[0](items)
            else:
                items = self._over_corpus(items, run[0], folder / f"{number}_corpus_{key_of(run)}")
        return items

    def _each_alone(self, items: Iterator[Item], stages: Sequence[Stage]) -> Iterator[Item]:
        num_characters, seconds = 0, 0.0
        while not self._num_processes:
            batch = list(until_full(items, BATCH_CHARACTERS))
            if not batch:
                return
            started = time.process_time()
            done = _through(stages, batch)
            seconds += time.process_time() - started
            num_characters += sum(map(characters_of, batch))
            yield from done
            is_slow = seconds * FAST_CHARACTERS_PER_SECOND > num_characters >= TRIAL_CHARACTERS
            if is_slow and self._num_processes is None and num_cores() > 1:
                break
        batches = iter(lambda: list(until_full(items, BATCH_CHARACTERS)), [])
        for done in run_jobs(partial(_through, stages), batches, num_processes=self._num_processes or num_cores()):
            yield from done

    def _over_corpus(self, items: Iterator[Item], stage: Stage, folder: Path) -> Iterator[Item]:
        count = folder / "num_pieces"
        if not count.exists():
            pieces = cut_into_pieces(folder / "pieces", items, piece_characters=self._piece_characters)
            write_durably(count, str(pieces.count).encode())
        pieces = Pieces(folder / "pieces", int(count.read_text()))
        num_processes = num_cores() if self._num_processes is None else self._num_processes
        for job in stage.jobs(pieces, folder):
            run_tasks(job, folder / "jobs" / job.name, num_processes=num_processes)
        rest = pieces.without(partial(stage.removed, folder))
        return chain.from_iterable(map(rest.items, range(rest.count)))


def run_tasks(job: PipelineJob, folder: Path, *, num_processes: int) -> None:
    """Run a job's remaining tasks; each leaves a file in `folder` once it is done, and is not run again."""
    folder.mkdir(parents=True, exist_ok=True)
    rest = [task for task in range(job.num_tasks) if not (folder / f"{task}").exists()]
    if not rest:
        return
    with shown_stage(job.name) as progress:
        progress.notes.append(f"{job.num_tasks} tasks")
        for place, _ in enumerate(run_jobs(job.run, rest, num_processes=num_processes)):
            (folder / f"{rest[place]}").touch()
            progress.advance(fraction=(job.num_tasks - len(rest) + place + 1) / job.num_tasks)


def _through(stages: Sequence[Stage], items: Iterable[Item]) -> list[Item]:
    return list(in_turn(stages, items))
