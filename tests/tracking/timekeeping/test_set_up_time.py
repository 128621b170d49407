import threading
import time

from lmtrain.tracking import events as module
from lmtrain.tracking.events import FILE, noted_set_up, set_up_time


def test_a_set_up_is_seen_until_it_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NOTED_EVERY_SECONDS", 0.0)
    seen, over = [], threading.Event()

    def is_over():
        seen.append(set_up_time(tmp_path))
        if len(seen) == 3:
            over.set()
        return over.is_set()

    began = time.monotonic() - 7.0
    with noted_set_up(tmp_path, began=began, num_devices=2, is_over=is_over):
        assert over.wait(60)
    assert seen[0].seen_at < seen[1].seen_at < seen[2].seen_at
    assert len({(each.started_at, each.num_devices) for each in seen}) == 1
    assert 7.0 <= seen[0].seen_at - seen[0].started_at < 300.0
    assert set_up_time(tmp_path) == seen[2], "nothing is noted after the end"


def test_an_attempt_whose_folder_is_gone_ends_without_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NOTED_EVERY_SECONDS", 0.0)
    (tmp_path / "1").mkdir()
    looks, over = [], threading.Event()

    def is_over():
        looks.append(None)
        if len(looks) == 1:
            (tmp_path / "1").rename(tmp_path / "elsewhere")
        elif len(looks) == 3:
            over.set()
        return over.is_set()

    with noted_set_up(tmp_path / "1", began=0.0, num_devices=1, is_over=is_over):
        assert over.wait(60)
    assert set_up_time(tmp_path / "1") is None
    assert not (tmp_path / "1").exists()
    for content in ('{"started_at": "then"}', '{"started_at": 1.0, "num_devices": 1}', "{"):
        (tmp_path / "elsewhere" / FILE).write_text(content)
        assert set_up_time(tmp_path / "elsewhere") is None
