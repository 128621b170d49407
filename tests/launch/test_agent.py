import os

from lmtrain.launch.agent import threads_per_rank


def test_cores_are_shared_out_and_every_rank_has_one():
    cores = len(os.sched_getaffinity(0))
    assert threads_per_rank(1) == cores
    assert threads_per_rank(cores * 4) == 1
