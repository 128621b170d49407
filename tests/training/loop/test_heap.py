import gc
import os
import sys

import pytest

from lmtrain.training.process_settings import settle_objects
from tests import forked

COUNT = """
import resource, torch
from lmtrain.training.process_settings import keep_freed_memory

KEEP
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):  # glibc before 2.38 wants a few bytes more than a freed block had
    torch.zeros(48 << 20, dtype=torch.uint8)
before = faults()
for _ in range(10):
    torch.zeros(48 << 20, dtype=torch.uint8)
print((faults() - before) / 10)
"""


def page_faults_in_a_fork(folder, *, keep: str) -> float:
    """Return the same of a process whose imports are there."""
    script = folder / "count.py"
    script.write_text(COUNT.replace("KEEP", keep))
    told = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = forked.run(script, [], folder=folder, environment=told)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])


needs_glibc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc is not glibc's")


@needs_glibc
def test_memory_that_a_step_frees_is_there_for_the_next(tmp_path):
    assert page_faults_in_a_fork(tmp_path, keep="assert keep_freed_memory()") < 10


def test_settled_objects_are_in_no_later_collection():
    try:
        settle_objects()
        assert gc.get_freeze_count() > 1000
        assert len(gc.get_objects()) < 1000
    finally:
        gc.unfreeze()
