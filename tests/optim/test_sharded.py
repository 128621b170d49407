"""Whole tensors pass through untouched; sharded ones, on two real ranks, give the weights of a single process."""

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import multiprocessing

from lmtrain.optim.sharded import ALONE, local, part_of, place_of, whole
from tests.optim import sharded_worker


def test_whole_tensor_passes_through_untouched() -> None:
    tensor = torch.ones(2, 3)
    assert local(tensor) is tensor
    assert whole(tensor, like=tensor) is tensor
    assert part_of(tensor, like=tensor) is tensor


def test_a_plain_tensor_of_one_process_is_all_there_is() -> None:
    assert place_of(torch.ones(2, 3)) == ALONE


def spawn(target: Callable[[int, int, int], None], num_ranks: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(target, args=(num_ranks, port), nprocs=num_ranks)


@pytest.mark.distributed
@pytest.mark.parametrize("num_ranks", [2, 3])  # 8 rows over 3 ranks: slices of 3, 3 and 2
def test_muon_is_the_same_alone_as_copies_and_sharded_and_no_rank_repeats_another(num_ranks: int) -> None:
    spawn(sharded_worker.muon_everywhere, num_ranks)


@pytest.mark.distributed
@pytest.mark.slow
def test_every_option_updates_sharded_parameters_as_whole_ones() -> None:
    spawn(sharded_worker.every_option_sharded, 2)


@pytest.mark.distributed
@pytest.mark.slow
def test_sharded_moments_of_8_bits_equal_whole_ones_and_are_restored_from_a_checkpoint(tmp_path: Path) -> None:
    spawn(partial(sharded_worker.eight_bits_sharded, folder=str(tmp_path)), 2)
