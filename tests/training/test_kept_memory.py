import subprocess
import sys

import pytest

from lmtrain.training import kept_memory
from lmtrain.training.kept_memory import keep_freed_memory

FAULTS = """
import ctypes, resource, sys
import torch
from lmtrain.training.kept_memory import keep_freed_memory
ctypes.CDLL(None).mallopt(-3, 2**20)  # gives back all blocks from 1 MiB, as it may by itself from 128 KiB
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2_000_000)  # 8 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
[faults() for _ in range(10)]
print(sum(faults() for _ in range(5)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="tells glibc's allocator")
def test_a_freed_tensor_s_pages_serve_the_next_one():
    counts = [
        int(subprocess.run([sys.executable, "-c", FAULTS, word], capture_output=True, check=True).stdout)
        for word in ("kept", "given_back")
    ]
    assert counts[0] < 300 < 1000 < counts[1]


def test_another_allocator_is_left_alone(monkeypatch):
    monkeypatch.setattr(kept_memory.ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
    monkeypatch.setattr(kept_memory.sys, "platform", "darwin")
    monkeypatch.setattr(kept_memory.ctypes, "CDLL", None)
    assert not keep_freed_memory()
