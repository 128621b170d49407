"""What only several ranks can get wrong: agreeing on a signal, and on a save that failed on one of them."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lmtrain.tracking.run_log import read_points

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def train(folder, dataset_folder, fault):
    """Train on two ranks; return what each of them said in the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test"}
    shared |= {"PYTHONPATH": os.pathsep.join(sys.path), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    command = [sys.executable, "-m", "tests.callbacks.two_ranks", str(folder), str(dataset_folder), fault]
    ranks = [
        subprocess.Popen(command, cwd=ROOT, env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
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
