"""A checkpoint of workers: the run's one file with the global weights, and a file of each other worker's own.

`state.pt` is a single process's checkpoint, of the global weights and the first worker's optimizer: every strategy, and
`generate` and `export`, read it. Beside it are the outer momentum and the worker's weights, under `OUTER`.
"""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from lmtrain.parallel.rank_reports import report_of, write_and_report
from lmtrain.parallel.whole_state import read_whole
from lmtrain.storage.checkpoint_layout import SHARDED, STATE, WEIGHTS
from lmtrain.storage.hashed_folder import aside_of, commit, not_written
from lmtrain.storage.plain_values import load_plain, load_state

OUTER: Final = "outer_step"
OWN: Final = "own"  # weights of a worker
MOMENTUM: Final = "momentum"
SENT_BYTES: Final = "sent_bytes"  # by each worker, since the run began
NUM_WORKERS: Final = "num_workers"


@dataclass(frozen=True, kw_only=True)
class WriteWorker:
    """Write one worker's file of a checkpoint; the first one waits for the others, and commits the whole."""

    final: Path
    rank: int
    num_workers: int
    timeout_seconds: float
    state: dict[str, Any]

    def __call__(self) -> int:
        """Return the bytes of this worker's file, on the first rank of the whole checkpoint.

        Raises:
            EnvironmentProblem: On the first rank, when one of them could not write.
        """
        aside = aside_of(self.final)
        if self.rank:
            file = aside / worker_file(self.rank)
            write_and_report(aside, self.rank, partial(torch.save, self.state, file))
            return file.stat().st_size
        try:
            torch.save(self.state, aside / STATE)
            for rank in range(1, self.num_workers):
                report_of(aside, rank, timeout_seconds=self.timeout_seconds)
            commit(aside, self.final, facts=self.state.get("lmtrain", {}))
        except (OSError, RuntimeError) as problem:
            shutil.rmtree(aside, ignore_errors=True)
            raise not_written(self.final, str(problem)) from problem
        return sum(path.stat().st_size for path in self.final.rglob("*") if path.is_file())


def worker_file(rank: int) -> str:
    """Return the name of a worker's file; the first one's state is in the run's one file."""
    return f"worker_{rank:05d}.pt"


def state_of_worker(
    checkpoint: dict[str, Any], outer: dict[str, Any], *, rank: int, num_workers: int
) -> dict[str, Any]:
    """Return a worker's part of a checkpoint: all of it on the first rank, the differences on the others."""
    if rank == 0:
        return {**checkpoint, OUTER: {**outer, NUM_WORKERS: num_workers}}
    own = {key: value for key, value in checkpoint.items() if key != WEIGHTS}
    return {**own, OUTER: {OWN: outer[OWN]}}


def read_worker(path: Path, *, rank: int, num_workers: int) -> dict[str, Any]:
    """Return a worker's state, from a checkpoint of any strategy.

    Of another number of workers each takes the global weights and the first one's optimizer.
    """
    if (path / SHARDED).is_dir():
        return read_whole(path / SHARDED)
    whole: dict[str, Any] = load_state(path / STATE, map_location="cpu")
    outer: dict[str, Any] = whole.get(OUTER, {})
    if outer.get(NUM_WORKERS) != num_workers:  # also where one process or another strategy wrote it
        return {**whole, OUTER: {**outer, OWN: None}}
    if rank == 0:
        return whole
    own: dict[str, Any] = load_plain(path / worker_file(rank), map_location="cpu")
    return {**whole, **own, OUTER: {**outer, **own[OUTER]}}
