"""Write a sharded checkpoint from processes without a connection: ranks plan together, each writes alone.

The work of torch.distributed.checkpoint.save in separate steps, with the same files as a result, through its interfaces
for planners and writers. Its own async_save opens a second process group and has no answer to failed ranks.
"""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from typing_extensions import override

from lmtrain.parallel.rank_reports import num_bytes_in, write_part
from lmtrain.storage.checkpoint_layout import REST, SHARDED
from lmtrain.storage.hashed_folder import aside_of


@dataclass(frozen=True, kw_only=True)
class WriteShards:
    """Write one rank's shards of a checkpoint; the first rank waits for the others, and commits the whole.

    `values` are those of the plan's items, by their index. `metadata` and `rest` are the first rank's.
    """

    final: Path
    rank: int
    num_ranks: int
    timeout_seconds: float
    plan: SavePlan
    values: dict[MetadataIndex, Tensor | BytesIO]
    metadata: Metadata | None
    rest: dict[str, Any]

    def __call__(self) -> int:
        """Return the bytes of this rank's shards, on the first rank of the whole checkpoint."""
        sharded = aside_of(self.final) / SHARDED
        writer = FileSystemWriter(sharded)
        writer.set_up_storage_writer(self.rank == 0)

        def finish(results: list[list[WriteResult]]) -> None:
            assert self.metadata is not None
            writer.finish(self.metadata, results)
            torch.save(self.rest, sharded / REST)

        results = write_part(
            self.final,
            rank=self.rank,
            num_ranks=self.num_ranks,
            timeout_seconds=self.timeout_seconds,
            write=lambda: writer.write_data(self.plan, _Resolved(self.values)).value(),
            finish=finish,
            facts=self.rest.get("lmtrain", {}),
        )
        return num_bytes_in(self.final) if results is None else sum(result.size_in_bytes for result in results)


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
        values={item.index: planner.resolve_data(item) for item in plan.items},
        metadata=metadata if rank == 0 else None,
        **facts,
    )


class _Resolved(DefaultSavePlanner):
    """A planner with its answers given before."""

    def __init__(self, values: dict[MetadataIndex, Tensor | BytesIO]) -> None:
        super().__init__()
        self._values = values

    @override
    def resolve_data(self, write_item: WriteItem) -> Tensor | BytesIO:
        return self._values[write_item.index]
