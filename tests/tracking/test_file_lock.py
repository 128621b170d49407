import subprocess
import sys

import pytest

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking.atomic_files import file_lock

HOLDER = """
import sys, time
from pathlib import Path
from lmtrain.tracking.atomic_files import file_lock
with file_lock(Path(sys.argv[1]), wait_seconds=0, note="holder 7"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def held(tmp_path):
    path = tmp_path / "lock"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield path, process
    process.kill()
    process.wait()
    process.stdout.close()


def test_second_process_waits_is_told_so_and_is_refused_with_the_holders_note(held):
    path, _ = held
    told: list[str] = []
    with (
        pytest.raises(EnvironmentProblem, match="taken by holder 7!"),
        file_lock(path, wait_seconds=0.2, refusal="taken by HOLDER!", waiting=told.append),
    ):
        pass
    assert told == ["holder 7"], "once"


@pytest.mark.faults
def test_lock_is_free_as_soon_as_its_holder_is_killed(held):
    path, process = held
    process.kill()
    with file_lock(path, wait_seconds=2.0):
        pass
