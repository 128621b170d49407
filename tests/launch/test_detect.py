"""Processes started by torchrun, SLURM or our own agent are recognised as ranks."""

from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.launch import detect
from lmtrain.launch.detect import OuterLauncher, first_host, outer_launcher, without_rank_variables

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "h",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "x",
    "GROUP_RANK": "1",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "localhost,n2",
}


def on_slurm(**changes: str) -> OuterLauncher:
    found = outer_launcher({**SRUN, **changes})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PATH": "/bin"}, None),
        (TORCHRUN, OuterLauncher(5, 1, 8, 4, node_rank=1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, OuterLauncher(1, 0, 2, 2)),
        ({**SRUN, **TORCHRUN}, OuterLauncher(5, 1, 8, 4, node_rank=1)),
        ({**TORCHRUN, "LMTRAIN_STORE": "s/0"}, OuterLauncher(5, 1, 8, 4, Path("s/0"), node_rank=1)),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, None),  # a batch script without srun
        ({name: value for name, value in SRUN.items() if name != "SLURM_PROCID"}, None),
    ],
)
def test_a_launcher_is_recognised(environment: dict[str, str], expected: OuterLauncher | None) -> None:
    assert outer_launcher(environment) == expected


def test_slurm_tasks_meet_at_the_first_node_and_a_port_of_their_step() -> None:
    found = on_slurm()
    assert found == OuterLauncher(5, 1, 8, 4, node_rank=1, address="localhost", port=found.port)
    assert found.port in detect.PORTS
    for change in ({"SLURM_STEP_ID": "3"}, {"SLURM_JOB_ID": "71"}, {"SLURM_RESTART_COUNT": "1"}):
        assert on_slurm(**change).port != found.port
    one_node = on_slurm(SLURM_STEP_NUM_NODES="1", SLURM_STEP_TASKS_PER_NODE="8")
    assert (one_node.address, one_node.local_world_size) == ("127.0.0.1", 8)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("n1,n2", "n1"), ("n[1-2]", "n1"), ("rack1-n[007-009,12],login", "rack1-n007"), ("r[1-2]n[3,5]x,other", "r1n3x")],
)
def test_the_first_host_of_slurms_short_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_unevenly_placed_tasks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"4\(x1\),3.*--ntasks-per-node=3"):
        on_slurm(SLURM_STEP_NUM_TASKS="7", SLURM_STEP_TASKS_PER_NODE="4(x1),3")


def test_ranks_of_another_job_do_not_inherit_the_variables() -> None:
    outer = {**TORCHRUN, "LMTRAIN_STORE": "s", "PATH": "/bin", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert without_rank_variables(outer) == {"PATH": "/bin"}
