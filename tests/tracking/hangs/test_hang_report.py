import threading

from lmtrain.tracking.hangs import read_stack, write_stack


def test_a_stack_is_the_main_thread_s_written_from_another_one(tmp_path):
    (tmp_path / "events").mkdir()
    writer = threading.Thread(target=write_stack, args=(tmp_path, 0))
    writer.start()
    writer.join()
    stack = read_stack(tmp_path, 0, since=0.0)
    assert stack is not None
    assert "test_hang_report.py" in stack
    assert "write_stack" not in stack
