import threading

import pytest
import torch

from lmtrain.errors import EnvironmentProblem
from lmtrain.parallel.diloco import OUTER, OWN, WriteWorker, read_worker, state_of_worker
from lmtrain.storage.hashed_folder import damage, start_aside

WORKERS = 3


def checkpoint(rank):
    return {"state_dict": {"w": torch.zeros(2)}, "optimizer_states": [{"of": rank}], "lmtrain": {"step": 5}}


def outer(rank):
    return {
        "momentum": {0: {"momentum_buffer": torch.ones(2)}},
        "sent_bytes": 7.0,
        OWN: [torch.full((2,), float(rank))],
    }


def write(final, *, ranks=range(WORKERS), timeout_seconds=5.0):
    """Let each worker write at once, as their processes do, and return the first one's result."""
    start_aside(final.with_name(f".{final.name}.tmp"))
    writers = [
        WriteWorker(
            final=final,
            rank=rank,
            num_workers=WORKERS,
            timeout_seconds=timeout_seconds,
            state=state_of_worker(checkpoint(rank), outer(rank), rank=rank, num_workers=WORKERS),
        )
        for rank in ranks
    ]
    others = [threading.Thread(target=each) for each in writers[1:]]
    for other in others:
        other.start()
    try:
        return writers[0]()
    finally:
        for other in others:
            other.join()


def test_each_worker_reads_its_own_state_and_the_weights_of_all(tmp_path):
    final = tmp_path / "step_00000005"
    num_bytes = write(final)
    assert damage(final) is None
    assert {path.name for path in final.iterdir()} == {
        "manifest.json", "state.pt", "worker_00001.pt", "worker_00002.pt",
    }  # fmt: skip
    assert num_bytes == sum(path.stat().st_size for path in final.iterdir())
    for rank in range(WORKERS):
        found = read_worker(final, rank=rank, num_workers=WORKERS)
        assert found["optimizer_states"] == [{"of": rank}]
        assert found[OUTER][OWN][0].tolist() == [rank, rank]
        assert found[OUTER]["momentum"][0]["momentum_buffer"].tolist() == [1, 1]
        assert found["state_dict"]["w"].tolist() == [0, 0]


def test_another_number_of_workers_begins_at_the_global_weights_with_the_momentum(tmp_path):
    final = tmp_path / "step_00000005"
    write(final)
    for rank in range(2):
        found = read_worker(final, rank=rank, num_workers=2)
        assert (found[OUTER][OWN], found["optimizer_states"]) == (None, [{"of": 0}])
        assert found[OUTER]["momentum"][0]["momentum_buffer"].tolist() == [1, 1]


def test_a_checkpoint_of_one_process_has_no_outer_state(tmp_path):
    torch.save(checkpoint(0), tmp_path / "state.pt")
    assert read_worker(tmp_path, rank=1, num_workers=2)[OUTER] == {OWN: None}


def test_a_worker_that_writes_nothing_leaves_no_checkpoint(tmp_path):
    final = tmp_path / "step_00000005"
    with pytest.raises(EnvironmentProblem, match="rank 2 has not written"):
        write(final, ranks=(0, 1), timeout_seconds=0.2)
    assert not final.exists()
