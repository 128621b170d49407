import os

import pytest

from lmtrain.tracking import atomic_files
from lmtrain.tracking.status import Status, read_status, status_name, write_status


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "FINISHED"),
        (1, "FAILED"),
        (2, "FAILED"),
        (4, "FAILED"),
        (139, "FAILED"),
        (85, "KILLED"),
        (130, "KILLED"),
        (137, "KILLED"),
        (143, "KILLED"),
    ],
)
def test_exit_code_names_the_state(code, name):
    assert status_name(code) == name


def test_status_reads_back_with_process_time_sweep_and_mlflow_run(tmp_path):
    atomic_files.write_json(tmp_path / "run.json", {"run": "u", "sweep": "lr-sweep"})
    atomic_files.write_json(tmp_path / "mlflow_state.json", {"run_id": "abc"})
    write_status(tmp_path, Status("FINISHED", exit_code=0, step=5, tokens=50))

    status = read_status(tmp_path)
    assert status is not None
    assert (status.status, status.exit_code, status.step, status.tokens) == ("FINISHED", 0, 5, 50)
    assert (status.process, status.sweep, status.mlflow_run_id) == (os.getpid(), "lr-sweep", "abc")
    assert status.time is not None
