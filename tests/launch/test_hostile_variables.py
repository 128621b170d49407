"""Variables of a launcher, of any content: ranks, or one line about the variable."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtrain.errors import ConfigurationError
from lmtrain.launch import slurm
from lmtrain.launch.detect import outer_launcher

NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID"),
    *("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_LOCALID", "SLURM_NODEID"),
    *("SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)
VALUES = ("0", "1", "2", "4", "-1", "", "x", "9" * 5000, "1e3", "2(x2)", "2(x3),1", "n[1-2]", "n[", "..", "a" * 300)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES) | st.text(max_size=9), min_size=2))
def test_any_variables_are_ranks_or_one_line(environment: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm.socket, "getaddrinfo", lambda host, port: host.encode("idna"))  # no network is asked
        patch.setattr(slurm, "_configured_address", lambda host: None)
        refusal = ""
        try:
            outer_launcher(environment)
        except ConfigurationError as refused:
            refusal = str(refused)
    assert "\n" not in refusal
    assert len(refusal) < 700
