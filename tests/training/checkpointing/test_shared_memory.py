import subprocess
import sys

import pytest

from lmtrain.errors import EnvironmentProblem
from lmtrain.training.checkpointing import staging as shared_memory
from lmtrain.training.checkpointing.staging import SharedMemory, free_host_bytes, require_room

PAGES = 4096
READ = "import mmap, sys; print(mmap.mmap(int(sys.argv[1]), 0)[:5])"


def test_another_process_reads_what_is_in_it():
    memory = SharedMemory()
    memory.reserve(PAGES)
    assert memory.buffer is not None
    memory.buffer[:5] = b"state"
    command = [sys.executable, "-c", READ, str(memory.descriptor)]
    assert subprocess.check_output(command, pass_fds=[memory.descriptor], text=True) == "b'state'\n"


def test_more_than_is_free_is_refused_with_both_amounts(monkeypatch):
    monkeypatch.setattr(shared_memory, "free_host_bytes", lambda: 1 << 30)
    require_room(900 << 20)
    with pytest.raises(EnvironmentProblem, match=r"needs 1\.1GB, but 1\.1GB of host memory is free"):
        require_room(1 << 30)


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"meminfo": "MemTotal: 99 kB\nMemAvailable:   10 kB\n"}, 10 * 1024),
        ({"meminfo": "MemAvailable: 10 kB\n", "memory.max": "max\n", "memory.current": "5\n"}, 10 * 1024),
        ({"meminfo": "MemAvailable: 10 kB\n", "memory.max": "1000\n", "memory.current": "600\n"}, 400),
        ({"memory.max": "1000\n", "memory.current": "1600\n"}, 0),
        ({"memory/memory.limit_in_bytes": "70", "memory/memory.usage_in_bytes": "30"}, 40),
    ],
)
def test_free_memory_is_what_host_and_container_both_have(tmp_path, files, free):
    (tmp_path / "memory").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert free_host_bytes(proc=tmp_path, cgroup=tmp_path) == free
