import threading

from lmtrain.tracking.hangs import BeatFile, hang_report, read_stack, write_stack


def test_a_stack_is_the_main_thread_s_written_from_another_one(tmp_path):
    (tmp_path / "events").mkdir()
    writer = threading.Thread(target=write_stack, args=(tmp_path, 0))
    writer.start()
    writer.join()
    stack = read_stack(tmp_path, 0, since=0.0)
    assert stack is not None
    assert "test_hang_report.py" in stack
    assert "write_stack" not in stack


def test_a_silent_process_is_told_in_place_of_a_stack_and_equal_ranks_point_at_the_network(tmp_path):
    beats = [BeatFile(tmp_path, rank).beat for rank in (0, 1)]
    told = hang_report(tmp_path, beats, num_ranks=2, now=beats[0].beat_at + 30, stacks_since=0.0)
    assert "All are equally far" in told
    assert (
        f"no sign of life for 30 s: stopped, or in code that holds Python's lock; py-spy dump --pid {beats[0].process}"
        in told
    )
