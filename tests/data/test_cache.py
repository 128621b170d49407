import errno
import json
import multiprocessing
import os
import shutil
from types import SimpleNamespace

import pytest

from lmtrain.data import cache
from lmtrain.data.cache import cached_folder
from lmtrain.data.shards import open_dataset
from lmtrain.errors import DataError, EnvironmentProblem
from tests.data.documents import make_dataset


@pytest.fixture
def folder(tmp_path):
    return make_dataset(tmp_path / "shared" / "made", [9, 4, 7, 5, 6], shard_tokens=10).folder


def content_of(folder):
    split = open_dataset(folder).split("train")
    return split.window(0, split.num_tokens).tolist(), split.document_ends().tolist()


def damaged_files(copy, folder):
    return [p for p in copy.rglob("train_*") if p.read_bytes() != (folder / p.name).read_bytes()]


def test_without_a_cache_the_folder_itself_is_read(folder):
    assert cached_folder(folder, None) == folder


def test_a_copy_is_whole_and_made_once(folder, tmp_path, capsys):
    copy = cached_folder(folder, str(tmp_path / "nvme"))
    assert copy.parent == tmp_path / "nvme"
    assert content_of(copy) == content_of(folder)
    assert (copy / "tokenizer" / "tokenizer.json").read_text() == "{}"
    assert "Copying 13 of 13 files" in capsys.readouterr().err
    times = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file()}
    assert cached_folder(folder, str(tmp_path / "nvme")) == copy
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert capsys.readouterr().err == ""


def test_training_reads_the_copy(folder, tmp_path):
    copy = cached_folder(folder, str(tmp_path / "nvme"))
    whole = content_of(copy)
    shutil.rmtree(folder)
    assert content_of(copy) == whole


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "manifest", "stamps"])
def test_a_damaged_copy_is_repaired(folder, tmp_path, damage, capsys):
    copy = cached_folder(folder, str(tmp_path / "nvme"))
    shard = copy / "train_00001.ds"
    kept = copy / "train_00000.ds"
    before = kept.stat().st_ino
    if damage == "flip":
        content = bytearray(shard.read_bytes())
        content[3] ^= 1
        shard.write_bytes(bytes(content))
    elif damage == "truncate":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "delete":
        shard.unlink()
    else:
        (copy / {"manifest": "dataset.json", "stamps": "copied.json"}[damage]).unlink()
    capsys.readouterr()
    assert cached_folder(folder, str(tmp_path / "nvme")) == copy
    assert damaged_files(copy, folder) == []
    assert content_of(copy) == content_of(folder)
    assert kept.stat().st_ino == before, "what is whole is not copied again"
    assert ("Copying 1 of" in capsys.readouterr().err) == (damage != "manifest")


def test_a_copy_that_was_killed_half_way_goes_on(folder, tmp_path, monkeypatch):
    copied = []
    real = cache._copy

    def dies(source, target, sha256):
        if len(copied) == 3:
            (target.with_name(f".{target.name}.1.tmp")).write_bytes(b"half")
            raise KeyboardInterrupt
        copied.append(target)
        real(source, target, sha256)

    monkeypatch.setattr(cache, "_copy", dies)
    with pytest.raises(KeyboardInterrupt):
        cached_folder(folder, str(tmp_path / "nvme"))
    monkeypatch.setattr(cache, "_copy", real)
    inodes = [path.stat().st_ino for path in copied]
    copy = cached_folder(folder, str(tmp_path / "nvme"))
    assert content_of(copy) == content_of(folder)
    assert [path.stat().st_ino for path in copied] == inodes
    assert not list(copy.rglob("*.tmp"))


def test_damage_in_the_source_is_found_while_copying(folder, tmp_path):
    shard = folder / "train_00000.ds"
    content = bytearray(shard.read_bytes())
    content[0] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"train_00000\.ds is damaged: its sha256 is not the one in dataset\.json"):
        cached_folder(folder, str(tmp_path / "nvme"))
    assert not list((tmp_path / "nvme").rglob("*.tmp"))


def test_too_little_space_reads_the_folder_itself_and_says_so(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100, used=99, free=1))
    assert cached_folder(folder, str(tmp_path / "nvme")) == folder
    assert "is full (" in capsys.readouterr().err
    assert content_of(folder)[0]


def test_a_disk_that_fills_up_while_copying_does_too(folder, tmp_path, monkeypatch, capsys):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert cached_folder(folder, str(tmp_path / "nvme")) == folder
    assert "this node reads" in capsys.readouterr().err
    assert not list((tmp_path / "nvme").rglob("*.tmp"))


def test_a_cache_that_cannot_be_written_is_refused(folder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match=r"data\.cache=.*file/nvme cannot be written: Not a directory"):
        cached_folder(folder, str(tmp_path / "file" / "nvme"))


def _ask(folder, root, results):
    copied = []
    real = cache._copy
    cache._copy = lambda *arguments: (copied.append(1), real(*arguments))
    results.put((str(cached_folder(folder, root)), len(copied)))


def test_many_ranks_of_a_node_make_one_copy(folder, tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=_ask, args=(folder, str(tmp_path / "nvme"), results)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    found = [results.get(timeout=30) for _ in ranks]
    for rank in ranks:
        rank.join()
    assert len({copy for copy, _ in found}) == 1
    assert sorted(copied for _, copied in found) == [0, 0, 0, 13]


def test_the_stamps_are_remembered(folder, tmp_path):
    copy = cached_folder(folder, str(tmp_path / "nvme"))
    known = json.loads((copy / "copied.json").read_text())
    status = (copy / "train_00000.ds").stat()
    assert known["train_00000.ds"] == [status.st_size, status.st_mtime_ns]
