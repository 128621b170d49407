from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.launch.detect import OuterLauncher, as_started, outer_launcher, without_rank_variables

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


def test_ordinary_process_has_no_outer_launcher():
    assert outer_launcher({"PATH": "/bin", "HOME": "/root"}) is None


def test_torchrun_is_recognised():
    assert outer_launcher(TORCHRUN) == OuterLauncher("torchrun", 5, 1, 8, 4, node_rank=1)


def test_a_command_to_type_next_begins_with_the_typed_launcher():
    alone = {**TORCHRUN, "WORLD_SIZE": "4"}
    assert as_started("python train.py", outer_launcher(alone), alone) == "torchrun --nproc-per-node=4 train.py"
    several = "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=h:1 --nproc-per-node=4 --no-python lmtrain train"
    assert as_started("lmtrain train", outer_launcher(TORCHRUN), TORCHRUN) == several
    for untyped in ({}, SRUN, {**alone, "LMTRAIN_STORE": "/tmp/store"}):
        assert as_started("lmtrain train", outer_launcher(untyped), untyped) == "lmtrain train"


def test_training_operator_that_sets_the_torch_variables_alone_is_recognised():
    assert outer_launcher({"RANK": "1", "WORLD_SIZE": "2"}) == OuterLauncher("torchrun", 1, 0, 2, 2)


def test_slurm_tasks_started_by_srun_are_recognised():
    found = outer_launcher(SRUN)
    assert found is not None
    assert found == OuterLauncher("slurm", 5, 1, 8, 4, node_rank=1, address="localhost", port=found.port)


@pytest.mark.parametrize("change", [{"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": None}])
def test_one_process_in_a_slurm_job_starts_its_own_ranks(change):
    merged = {**SRUN, **change}
    assert outer_launcher({name: value for name, value in merged.items() if value is not None}) is None


def test_torchrun_inside_slurm_is_torchrun():
    found = outer_launcher({**SRUN, **TORCHRUN})
    assert found is not None
    assert found.kind == "torchrun"


def test_mpi_is_recognised():
    environment = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    with pytest.raises(ConfigurationError, match="-x MASTER_ADDR="):
        outer_launcher(environment)
    environment |= {"MASTER_ADDR": "h", "MASTER_PORT": "1"}
    assert outer_launcher({**environment, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) == OuterLauncher("mpi", 3, 1, 4, 2)


def test_variable_that_is_no_number_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="WORLD_SIZE='many'"):
        outer_launcher({"RANK": "0", "WORLD_SIZE": "many"})


def test_environment_without_rank_variables_is_an_ordinary_one():
    cleaned = without_rank_variables({**TORCHRUN, "PATH": "/bin", "TORCHELASTIC_RESTART_COUNT": "1"})
    assert cleaned == {"PATH": "/bin"}
    assert outer_launcher(cleaned) is None


def test_our_own_launcher_says_in_which_file_its_ranks_meet():
    mine = {**TORCHRUN, "LMTRAIN_STORE": "stores/0"}
    assert outer_launcher(mine) == OuterLauncher("torchrun", 5, 1, 8, 4, Path("stores/0"), node_rank=1)
    assert "LMTRAIN_STORE" not in without_rank_variables(mine)
