import errno
import os

import pytest

from lmtrain.storage import durable


def test_a_file_is_replaced_with_its_mode(tmp_path):
    path = tmp_path / "facts.json"
    path.write_text("old")
    durable.write_durably(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "facts.json"
    path.write_text("old")

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        durable.write_durably(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, type(tmp_path).replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(
        type(tmp_path), "replace", lambda path, target: (events.append("rename"), replace(path, target))
    )
    durable.write_durably(tmp_path / "facts.json", b"new")
    assert events == ["fsync", "rename", "fsync"]


def test_a_folder_is_synced_after_its_parts(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("b")
    synced = []
    monkeypatch.setattr(durable, "fsync", lambda path: synced.append(path.name))
    durable.fsync_all(tmp_path / "a")
    assert synced == ["b", "a"]


def write_half(path):
    with durable.open_durably(path) as file:
        file.write(b"half")
        raise KeyError


def test_a_block_that_raises_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "facts.json"
    path.write_text("old")
    with pytest.raises(KeyError):
        write_half(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_killed_writers_are_cleared_at_any_depth(tmp_path, monkeypatch):
    (tmp_path / "shards").mkdir()
    whole = tmp_path / "shards" / "train.tmp.ds"
    whole.touch()
    with monkeypatch.context() as killed:
        killed.setattr(type(tmp_path), "unlink", lambda path, missing_ok=False: None)  # as if killed before it
        with pytest.raises(KeyError):
            write_half(tmp_path / "shards" / "train_00000.ds")
    assert len(list((tmp_path / "shards").iterdir())) == 2
    durable.clear_asides(tmp_path)
    assert list((tmp_path / "shards").iterdir()) == [whole]
