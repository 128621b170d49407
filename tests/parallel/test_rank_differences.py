from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from lmtrain.parallel.rank_reports import differing
from tests.ranks import on_ranks

ROWS = torch.arange(12.0).view(6, 2)


def a_sharded_entry_a_copy_and_a_nan_are_named_by_their_ranks(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    sharded = distribute_tensor(ROWS.clone(), mesh, [Shard(0)])
    sharded.to_local()[0, 0] += 0.5 if rank == 1 else 0.01
    own: dict[str, Tensor] = {
        "sharded": sharded,
        "copied": ROWS + 2.0 * (rank == 0),
        "same": ROWS + 0.01 * rank,
        "nan": ROWS * (torch.nan if rank == 1 else 1.0),
    }
    found = differing(own, dict.fromkeys(own, ROWS), dict.fromkeys(own, 0.1), dict)
    assert found["sharded"] == (0.5, (1,)), "rank 1 holds the wrong row, though both put the whole together"
    assert found["copied"] == (2.0, (0,))
    assert found["same"] == (pytest.approx(0.01, rel=1e-4), ())
    assert found["nan"] == (float("inf"), (1,))


@pytest.mark.distributed
def test_differences_are_named_by_the_ranks_that_hold_them(tmp_path: Path) -> None:
    on_ranks(a_sharded_entry_a_copy_and_a_nan_are_named_by_their_ranks, folder=tmp_path)


def test_a_tensor_of_one_side_alone_differs_by_infinity() -> None:
    found = differing({"mine": ROWS}, {"theirs": ROWS}, {"theirs": 1.0}, dict)
    assert found == {"theirs": (float("inf"), (0,)), "mine": (float("inf"), (0,))}
