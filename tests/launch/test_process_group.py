import os
import socket
import subprocess
import sys

import pytest
import torch.distributed as dist
from torch import multiprocessing

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.launch.detect import OuterLauncher
from lmtrain.launch.process_group import agree_on, broadcast_outcome, join
from tests import tiny
from tests.leave import leave

RESTARTED = """
import os, time
from lmtrain.launch.detect import outer_launcher
from lmtrain.launch.process_group import join
from tests.leave import leave
start, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
if (start, rank) == ("1", "1"):
    time.sleep(3)  # rank 0 finds the address of the rank that is gone
join(outer_launcher(os.environ), timeout_seconds=8)
if (start, rank) == ("0", "1"):
    os._exit(1)
leave()
"""


def refuse(error):
    raise error


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("meet_in_file", [False, True])
def test_the_first_rank_decides_and_refuses_for_all(tmp_path, meet_in_file):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_rank, args=(port, tmp_path / "store" if meet_in_file else None), nprocs=2)


def _rank(rank, port, store_file):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(0 if store_file else port)}
    outer = OuterLauncher(rank, rank, 2, 2, store_file)
    os.environ["NCCL_IB_HCA"] = "mine"
    join(outer, timeout_seconds=30, variables={"NCCL_IB_HCA": "mlx5", "GPU_MAX_HW_QUEUES": 2})
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ, "torch's own default stays"
    assert (os.environ["NCCL_IB_HCA"], os.environ["GPU_MAX_HW_QUEUES"]) == ("mine", "2")
    join(outer)  # a second call finds the group as it is
    assert (dist.get_rank(), dist.get_world_size()) == (rank, 2)
    assert broadcast_outcome(lambda: {"decided by": rank}) == {"decided by": 0}
    assert broadcast_outcome(lambda: None if rank == 0 else refuse(AssertionError("only rank 0 is asked"))) is None
    for error in (ConfigurationError("resume=x is not there"), EnvironmentProblem("all are damaged")):
        with pytest.raises(type(error), match=str(error)):
            broadcast_outcome(lambda error=error: refuse(error))
    expected, words = (ZeroDivisionError, "division") if rank == 0 else (RuntimeError, "rank 0 failed: ZeroDivision")
    with pytest.raises(expected, match=words):
        broadcast_outcome(lambda: 1 / 0)
    assert broadcast_outcome(lambda: 1) == 1, "a refusal leaves the ranks in step"
    agree_on("abc")
    with pytest.raises(ConfigurationError, match="the same configuration: hash0 on rank 0; hash1 on rank 1"):
        agree_on(f"hash{rank}")
    agree_on("abc")
    leave()


@pytest.mark.distributed
def test_ranks_that_torchrun_starts_again_meet_one_another_and_not_those_that_are_gone(tmp_path):
    agent = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", "--no-python"]
    command = [sys.executable, *agent, sys.executable, "-c", RESTARTED]
    ended = subprocess.run(command, cwd=tmp_path, env=tiny.environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
