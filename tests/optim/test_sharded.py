"""Whole tensors pass through untouched; sharded ones, on two real ranks, give the weights of a single process."""

from pathlib import Path

import pytest

from tests import forked, tiny

WORKER = Path(__file__).with_name("sharded_worker.py")


def on_ranks(num_ranks: int, what: str, folder: Path) -> None:
    words = [what, *([str(folder)] if what == "eight_bits_sharded" else [])]
    done = forked.run(WORKER, words, folder=folder, environment=tiny.environment(), num_ranks=num_ranks)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.distributed
@pytest.mark.parametrize("num_ranks", [2, 3])  # 8 rows over 3 ranks: slices of 3, 3 and 2
def test_muon_is_the_same_alone_as_copies_and_sharded_and_no_rank_repeats_another(
    num_ranks: int, tmp_path: Path
) -> None:
    on_ranks(num_ranks, "muon_everywhere", tmp_path)


@pytest.mark.distributed
@pytest.mark.slow
def test_every_option_updates_sharded_parameters_as_whole_ones(tmp_path: Path) -> None:
    on_ranks(2, "every_option_sharded", tmp_path)


@pytest.mark.distributed
@pytest.mark.slow
def test_sharded_moments_of_8_bits_equal_whole_ones_and_are_restored_from_a_checkpoint(tmp_path: Path) -> None:
    on_ranks(2, "eight_bits_sharded", tmp_path)
