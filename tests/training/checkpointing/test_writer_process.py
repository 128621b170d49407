import threading
from multiprocessing import Pipe

from torch import ones

from lmtrain.training.checkpointing.background_writer import Reserve, answer, serve
from lmtrain.training.checkpointing.staging import SharedMemory, stage
from lmtrain.training.side_stream import NoStream
from tests.training.checkpointing.jobs import Refuse, Sum


def staged(job, memory):
    return stage(job, memory=memory, side=NoStream()).staged


def test_a_job_is_done_and_its_bytes_and_seconds_told(tmp_path):
    memory = SharedMemory()
    told = answer(staged(Sum(ones(7), tmp_path / "sum"), memory), memory)
    assert (tmp_path / "sum").read_text() == "7.0"
    assert (told.problem, told.num_bytes) == (None, 3)
    assert told.seconds > 0


def test_a_job_that_fails_is_told(tmp_path):
    memory = SharedMemory()
    assert answer(staged(Refuse(), memory), memory).problem == "No space left on device"


def test_memory_is_found_or_why_not_is_told(monkeypatch):
    memory = SharedMemory()
    assert answer(Reserve(5000), memory).problem is None
    assert memory.num_bytes == 5000
    monkeypatch.setattr("lmtrain.training.checkpointing.staging.free_host_bytes", lambda: 0)
    assert "0B of host memory is free" in str(answer(Reserve(10_120), memory).problem)


def test_requests_are_served_in_turn_until_the_end_is_asked_for_or_the_trainer_is_gone(tmp_path):
    for ends_well in (True, False):
        memory, (ours, theirs) = SharedMemory(), Pipe()
        thread = threading.Thread(target=serve, args=(theirs, memory))
        thread.start()
        ours.send(Reserve(5000))
        assert ours.recv().problem is None
        ours.send(staged(Sum(ones(2), tmp_path / "sum"), memory))
        assert ours.recv().num_bytes == 3
        if ends_well:
            ours.send(None)
        ours.close()
        thread.join(10)
        assert not thread.is_alive()
        theirs.close()
