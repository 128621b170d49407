import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import os, time
from lmtrain.launch.lifetime import die_with_parent
die_with_parent(os.getppid())
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()


@pytest.mark.faults
def test_child_ends_with_a_parent_that_was_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 2.0
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent.stdout.close()


def test_child_whose_parent_is_already_gone_ends_at_once():
    code = "from lmtrain.launch.lifetime import die_with_parent; die_with_parent(1_000_001)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
