import resource

import numpy as np
import pytest

from lmtrain.storage.bounded_memory import bounded_memory


def test_what_asks_for_more_gets_a_memory_error_and_the_limit_is_as_before():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), bounded_memory(more_bytes=1 << 28), bounded_memory():
        np.empty(1 << 32, np.uint8)  # more than a process keeps free
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert np.empty(1 << 29, np.uint8).nbytes == 1 << 29


def test_a_tighter_limit_from_outside_stays():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with bounded_memory(more_bytes=1 << 28):
        outer = resource.getrlimit(resource.RLIMIT_AS)[0]
    resource.setrlimit(resource.RLIMIT_AS, (outer, before[1]))
    try:
        with bounded_memory(more_bytes=1 << 40):
            assert resource.getrlimit(resource.RLIMIT_AS)[0] == outer
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
