"""One rank's part of it, without ranks; tests/parallel/test_fsdp.py has two real ones."""

import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from lmtrain.errors import EnvironmentProblem
from lmtrain.parallel.shard_writing import SHARDED, WriteShards, plan_shards
from lmtrain.storage.hashed_folder import aside_of, damage, start_aside


@pytest.fixture
def state():
    """A state of two tensors and a number."""
    return {"weights": {"a": torch.arange(6.0), "b": torch.ones(2, 2)}, "step": 3}


@pytest.fixture
def planned(tmp_path, state):
    """What a job of one rank would write."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    final = tmp_path / "step_00000003"
    start_aside(aside_of(final))
    try:
        yield plan_shards(state, final, rank=0, timeout_seconds=0.2, rest={"lmtrain": {"step": 3}, "epoch": 1})
    finally:
        dist.destroy_process_group()


def test_torch_reads_what_was_written_and_the_folder_is_whole(planned, state):
    assert pickle.loads(pickle.dumps(planned))() > 0
    assert damage(planned.final) is None
    empty: dict[str, Any] = {"weights": {"a": torch.zeros(6), "b": torch.zeros(2, 2)}, "step": 0}
    dcp.load(empty, checkpoint_id=planned.final / SHARDED, no_dist=True)
    assert empty["step"] == 3
    assert all(torch.equal(empty["weights"][name], state["weights"][name]) for name in "ab")
    assert torch.load(planned.final / SHARDED / "meta.pt")["epoch"] == 1


def of_two_ranks(planned: WriteShards) -> WriteShards:
    return WriteShards(**{**planned.__dict__, "num_ranks": 2})


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (None, r"rank 1 has not written its shards within 0\.2 s"),
        ("", "rank 1: it could not write"),
        ("full", "rank 1: full"),
    ],
)
def test_a_rank_that_fails_or_says_nothing_is_named_and_nothing_is_left(planned, report, message):
    if report is not None:
        (aside_of(planned.final) / ".rank1.failed").write_text(report)
    with pytest.raises(EnvironmentProblem, match=message):
        of_two_ranks(planned)()
    assert list(planned.final.parent.iterdir()) == []


def test_what_another_rank_tells_of_its_shards_is_not_part_of_the_checkpoint(planned):
    (aside_of(planned.final) / ".rank1.done").write_bytes(pickle.dumps([]))
    of_two_ranks(planned)()
    assert sorted(path.name for path in planned.final.iterdir()) == ["manifest.json", SHARDED]


def test_another_rank_tells_why_it_could_not_write(planned):
    aside = aside_of(planned.final)
    (aside / SHARDED / "__0_0.distcp").mkdir(parents=True)
    with pytest.raises(OSError, match="Is a directory"):
        WriteShards(**{**planned.__dict__, "rank": 1})()
    assert "Is a directory" in (aside / ".rank1.failed").read_text()
