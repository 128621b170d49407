import subprocess
import sys
from pathlib import Path

from lmtrain.tracking.status import Status, settled_status, write_status

HOLD = """
import sys
from pathlib import Path
from lmtrain.tracking.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_nobody_holds_does_not_run(tmp_path: Path) -> None:
    write_status(tmp_path, Status("RUNNING", process=1, step=3))
    found = settled_status(tmp_path)
    assert found is not None
    assert (found.status, found.step) == ("KILLED", 3)
    write_status(tmp_path, Status("FAILED", exit_code=3))
    found = settled_status(tmp_path)
    assert found is not None
    assert found.status == "FAILED"


def test_a_run_that_a_process_holds_runs(tmp_path: Path) -> None:
    write_status(tmp_path, Status("RUNNING", process=1))
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        found = settled_status(tmp_path)
        assert found is not None
        assert found.status == "RUNNING"
        holder.communicate()
