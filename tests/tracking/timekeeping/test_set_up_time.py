import os
import threading
import time

from lmtrain.tracking.timekeeping import set_up_time as module
from lmtrain.tracking.timekeeping.set_up_time import FILE, noted_set_up, set_up_time


def test_a_set_up_is_seen_until_it_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TOUCHED_EVERY_SECONDS", 0.0)
    file, seen, over = tmp_path / FILE, [], threading.Event()

    def is_over():
        seen.append(file.stat().st_mtime)
        if len(seen) == 1:
            os.utime(file, (1.0, 1.0))
        elif len(seen) == 3:
            over.set()
        return over.is_set()

    began = time.monotonic() - 7.0
    with noted_set_up(tmp_path, began=began, num_devices=2, is_over=is_over):
        assert over.wait(60)
    assert seen[1] > 1.0, "touched between the first look and the second"
    noted = set_up_time(tmp_path)
    assert noted is not None
    assert noted.num_devices == 2
    assert 7.0 <= noted.seen_at - noted.started_at < 300.0
    os.utime(file, (1.0, 1.0))
    noted = set_up_time(tmp_path)
    assert noted is not None
    assert noted.seen_at == noted.started_at, "a clock set back is no time"


def test_an_attempt_whose_folder_is_gone_ends_without_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TOUCHED_EVERY_SECONDS", 0.0)
    (tmp_path / "1").mkdir()
    looks, over = [], threading.Event()

    def is_over():
        looks.append(None)
        if len(looks) == 3:
            over.set()
        return over.is_set()

    with noted_set_up(tmp_path / "1", began=0.0, num_devices=1, is_over=is_over):
        (tmp_path / "1" / FILE).unlink()
        assert over.wait(60)
    assert set_up_time(tmp_path / "1") is None
    (tmp_path / "1" / FILE).write_text('{"started_at": "then"}')
    assert set_up_time(tmp_path / "1") is None
