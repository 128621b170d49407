"""Write a sharded checkpoint from processes without a connection: ranks plan together, each writes alone.

The work of torch.distributed.checkpoint.save in separate steps, with the same files as a result, through its interfaces
for planners and writers. Its own async_save opens a second process group and has no answer to failed ranks.
"""

import pickle
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from typing_extensions import override

from lmtrain.parallel.shard_reading import unpickle
from lmtrain.storage.checkpoint_layout import REST, SHARDED
from lmtrain.storage.hashed_folder import aside_of, commit, not_written

POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class WriteShards:
    """Write one rank's shards of a checkpoint; the first rank waits for the others, and commits the whole.

    `values` are those of the plan's items, in their order. `metadata` and `rest` are the first rank's.
    """

    final: Path
    rank: int
    num_ranks: int
    timeout_seconds: float
    plan: SavePlan
    values: list[Tensor | BytesIO]
    metadata: Metadata | None
    rest: dict[str, Any]

    def __call__(self) -> int:
        """Return the bytes of this rank's shards, on the first rank of all that is in the checkpoint.

        Raises:
            EnvironmentProblem: On the first rank, when one of them could not write.
        """
        aside = aside_of(self.final)
        writer = FileSystemWriter(aside / SHARDED)
        writer.set_up_storage_writer(self.rank == 0)
        if self.rank:
            results = _write_and_report(aside, self.rank, lambda: self._write(writer))
            return sum(result.size_in_bytes for result in results)
        try:
            self._complete(writer, aside)
        except (OSError, RuntimeError) as problem:
            shutil.rmtree(aside, ignore_errors=True)
            raise not_written(self.final, str(problem)) from problem
        return sum(path.stat().st_size for path in self.final.rglob("*") if path.is_file())

    def _complete(self, writer: FileSystemWriter, aside: Path) -> None:
        """Write the first rank's shards, and the common files once all others are there."""
        results = [self._write(writer), *(self._results_of(aside, rank) for rank in range(1, self.num_ranks))]
        assert self.metadata is not None
        writer.finish(self.metadata, results)
        torch.save(self.rest, aside / SHARDED / REST)
        commit(aside, self.final, facts=self.rest.get("lmtrain", {}))

    def _write(self, writer: FileSystemWriter) -> list[WriteResult]:
        values = {item.index: value for item, value in zip(self.plan.items, self.values, strict=True)}
        return writer.write_data(self.plan, _Resolved(values)).value()

    def _results_of(self, aside: Path, rank: int) -> list[WriteResult]:
        """Wait for the report of another rank's process, of this run and moment, on its shards."""
        done, failed = _reports(aside, rank)
        deadline = time.monotonic() + self.timeout_seconds
        while not done.exists():
            if failed.exists():
                raise RuntimeError(f"rank {rank}: {failed.read_text() or 'it could not write'}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"rank {rank} has not written its shards within {self.timeout_seconds:g} s")
            time.sleep(POLL_SECONDS)
        results = unpickle(done.read_bytes())
        done.unlink()
        return results


def plan_shards(state: dict[str, Any], final: Path, *, rank: int, **facts: Any) -> WriteShards:
    """Agree with all ranks on each one's part of a state: the one step with a wait for one another."""
    num_ranks, planner = dist.get_world_size(), DefaultSavePlanner()
    writer = FileSystemWriter(aside_of(final) / SHARDED)
    writer.set_up_storage_writer(rank == 0)
    planner.set_up_planner(state, writer.storage_meta(), rank == 0)
    local_plans: list[Any] = [None] * num_ranks
    dist.all_gather_object(local_plans, writer.prepare_local_plan(planner.create_local_plan()))
    plans, metadata = planner.create_global_plan(local_plans)  # the same on every rank
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[rank])
    return WriteShards(
        final=final,
        rank=rank,
        num_ranks=num_ranks,
        plan=plan,
        values=[planner.resolve_data(item) for item in plan.items],
        metadata=metadata if rank == 0 else None,
        **facts,
    )


class _Resolved(DefaultSavePlanner):
    """A planner with its answers given before."""

    def __init__(self, values: dict[Any, Tensor | BytesIO]) -> None:
        super().__init__()
        self._values = values

    @override
    def resolve_data(self, write_item: WriteItem) -> Tensor | BytesIO:
        return self._values[write_item.index]


def _write_and_report(aside: Path, rank: int, write: Callable[[], list[WriteResult]]) -> list[WriteResult]:
    """Write, and report the outcome to the first rank's process, through their shared folder."""
    done, failed = _reports(aside, rank)
    try:
        results = write()
        half = done.with_suffix(".half")
        half.write_bytes(pickle.dumps(results))
        half.rename(done)
    except (OSError, RuntimeError) as problem:
        failed.touch()  # a name fits where the disk is too full for a word
        failed.write_text(str(problem) or repr(problem))
        raise
    return results


def _reports(aside: Path, rank: int) -> tuple[Path, Path]:
    return aside / f".rank{rank}.done", aside / f".rank{rank}.failed"
