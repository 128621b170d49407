"""Whole tensors pass through untouched; sharded ones, on two real ranks, give the weights of a single process."""

import socket

import pytest
import torch
from torch import multiprocessing

from lmtrain.optim.sharded import local, part_of, whole
from tests.optim import sharded_worker


def test_whole_tensor_passes_through_untouched() -> None:
    tensor = torch.ones(2, 3)
    assert local(tensor) is tensor
    assert whole(tensor, like=tensor) is tensor
    assert part_of(tensor, like=tensor) is tensor


@pytest.mark.distributed
def test_muon_under_fsdp2_equals_one_process() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(sharded_worker.main, args=(2, port), nprocs=2)
