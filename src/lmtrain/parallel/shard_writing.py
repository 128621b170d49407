"""Write a sharded checkpoint from processes without a connection: ranks plan together, each writes alone.

The work of torch.distributed.checkpoint.save in separate steps, with the same files as a result, through its interfaces
for planners and writers. Its own async_save opens a second process group and has no answer to failed ranks.
"""

import shutil
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from typing_extensions import override

from lmtrain.parallel.rank_reports import report_of, write_and_report
from lmtrain.storage.checkpoint_layout import REST, SHARDED
from lmtrain.storage.hashed_folder import aside_of, commit, not_written


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
        """Return the bytes of this rank's shards, on the first rank of the whole checkpoint.

        Raises:
            EnvironmentProblem: On the first rank, when one of them could not write.
        """
        aside = aside_of(self.final)
        writer = FileSystemWriter(aside / SHARDED)
        writer.set_up_storage_writer(self.rank == 0)
        if self.rank:
            results = write_and_report(aside, self.rank, lambda: self._write(writer))
            return sum(result.size_in_bytes for result in results)
        try:
            self._complete(writer, aside)
        except (OSError, RuntimeError) as problem:
            shutil.rmtree(aside, ignore_errors=True)
            raise not_written(self.final, str(problem)) from problem
        return sum(path.stat().st_size for path in self.final.rglob("*") if path.is_file())

    def _complete(self, writer: FileSystemWriter, aside: Path) -> None:
        """Write the first rank's shards, and the common files once all others are there."""
        others = (report_of(aside, rank, timeout_seconds=self.timeout_seconds) for rank in range(1, self.num_ranks))
        results = [self._write(writer), *others]
        assert self.metadata is not None
        writer.finish(self.metadata, results)
        torch.save(self.rest, aside / SHARDED / REST)
        commit(aside, self.final, facts=self.rest.get("lmtrain", {}))

    def _write(self, writer: FileSystemWriter) -> list[WriteResult]:
        values = {item.index: value for item, value in zip(self.plan.items, self.values, strict=True)}
        return writer.write_data(self.plan, _Resolved(values)).value()


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
