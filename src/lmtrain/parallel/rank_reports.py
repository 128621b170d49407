"""One outcome of an action of several ranks: agreed on by their group, or by files between unconnected processes."""

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from torch.distributed.checkpoint.api import CheckpointException

from lmtrain.parallel.all_ranks import on_all_ranks
from lmtrain.parallel.shard_reading import unpickle
from lmtrain.storage.durable import write_durably

T = TypeVar("T")
POLL_SECONDS: Final = 0.02


def first_problem(action: Callable[[], object], *, acts: bool = True) -> str | None:
    """Let each rank that `acts` do it; return one problem on all: none waits for a failed one."""
    mine: str | None = None
    try:
        if acts:
            action()
    except CheckpointException as failure:  # torch's own, not an Exception
        mine = "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in failure.failures.items())
    except (OSError, RuntimeError) as failure:
        mine = str(failure) or repr(failure)
    return next(filter(None, on_all_ranks(mine)), None)


def write_and_report(folder: Path, rank: int, write: Callable[[], T]) -> T:
    """Write, and report the outcome to the first rank's process, through their shared folder."""
    done, failed = _reports(folder, rank)
    try:
        result = write()
        write_durably(done, pickle.dumps(result))
    except (OSError, RuntimeError) as problem:
        try:
            write_durably(failed, (str(problem) or repr(problem)).encode())
        except OSError:
            failed.touch()  # a name fits where the disk is too full for a word
        raise
    return result


def report_of(folder: Path, rank: int, *, timeout_seconds: float) -> Any:
    """Wait for the report of another rank's process, of this run and moment, on its writing.

    Raises:
        RuntimeError: It could not write, or has said nothing for so long.
    """
    done, failed = _reports(folder, rank)
    deadline = time.monotonic() + timeout_seconds
    while not done.exists():
        if failed.exists():
            raise RuntimeError(f"rank {rank}: {failed.read_text() or 'it could not write'}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"rank {rank} has not written its shards within {timeout_seconds:g} s")
        time.sleep(POLL_SECONDS)
    result = unpickle(done.read_bytes())
    done.unlink()
    return result


def _reports(folder: Path, rank: int) -> tuple[Path, Path]:
    return folder / f".rank{rank}.done", folder / f".rank{rank}.failed"
