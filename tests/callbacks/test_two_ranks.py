"""What only several ranks can get wrong: agreeing on a signal, and on a save that failed on one of them."""

import json
import signal
from pathlib import Path

import pytest

from lmtrain.tracking.run_log import read_points
from tests import forked, tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("two_ranks.py")


def train(folder, dataset_folder, fault):
    """Train on two ranks; return what each of them said in the end."""
    words = [str(folder), str(dataset_folder), fault]
    done = forked.run(SCRIPT, words, folder=folder, environment=tiny.environment(), num_ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_a_signal_to_the_second_rank_alone_stops_both_at_the_next_log_point(tmp_path, dataset_folder):
    results = train(tmp_path, dataset_folder, "sigterm")
    assert results == [{"step": 4, "stop_signal": signal.SIGTERM, "saved": [4]}] * 2


def test_a_save_that_fails_on_the_first_rank_hangs_no_other(tmp_path, dataset_folder):
    results = train(tmp_path, dataset_folder, "full_disk")
    assert results == [{"step": 6, "stop_signal": None, "saved": [6]}] * 2
    measured = [point.step for point in read_points(tmp_path / "metrics.jsonl") if "validation/loss" in point.metrics]
    assert measured == [0, 6]


def test_ranks_go_on_while_the_first_one_s_checkpoint_is_written_by_another_process(tmp_path, dataset_folder):
    results = train(tmp_path, dataset_folder, "behind")
    assert results == [{"step": 6, "stop_signal": None, "saved": [4, 6]}] * 2
    told = [point for point in read_points(tmp_path / "metrics.jsonl") if "checkpoint/write_seconds" in point.metrics]
    assert [point.step for point in told] == [2, 4, 6]
