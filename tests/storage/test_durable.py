"""Files and folders survive failures and kills."""

import errno
import json
import os
from pathlib import Path

import pytest

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage import checkpoint_layout, durable
from lmtrain.storage.hashed_folder import (
    MANIFEST,
    clear_leftovers,
    damage,
    require_whole,
    write_atomically,
)


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


def write_half(path):
    with durable.open_durably(path) as file:
        file.write(b"half")
        raise KeyError


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


def fill(folder, content=b"weights"):
    (folder / "shards").mkdir()
    (folder / "state.pt").write_bytes(content)
    (folder / "shards" / "0.pt").write_bytes(content * 2)


@pytest.fixture
def final(tmp_path):
    """A folder that was written well, as the only thing in its parent."""
    final = tmp_path / "step_1"
    write_atomically(final, facts={"step": 1}, write=fill)
    return final


@pytest.mark.parametrize("name", ["state.pt", "shards/0.pt", MANIFEST])
def test_a_flipped_bit_in_any_byte_is_found(final, name):
    whole = (final / name).read_bytes()
    for index in range(len(whole)):
        flipped = bytearray(whole)
        flipped[index] ^= 1 << index % 8
        (final / name).write_bytes(flipped)
        assert damage(final), f"{name}: {bytes(flipped)!r}"


@pytest.mark.parametrize(
    "content",
    [None, "", "{", "[]", "null", "{}", '{"files": null}', '{"files": {"state.pt": 7}}', '{"files": {}}', "\0"],
)
def test_a_broken_manifest_is_damage_not_a_crash(final, content):
    (final / MANIFEST).unlink()
    if content is not None:
        (final / MANIFEST).write_text(content)
    assert MANIFEST in str(damage(final))


def test_a_damaged_folder_is_refused_with_what_is_wrong_and_the_way_out(final):
    require_whole(final)
    (final / "state.pt").write_bytes(b"")
    with pytest.raises(EnvironmentProblem, match=r"step_1 is damaged: state\.pt has 0 bytes.*resume=PATH"):
        require_whole(final)


# torch words a full disk as a RuntimeError of its zip writer.
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unexpected pos 64")])
def test_a_failing_writer_leaves_the_old_folder_and_nothing_else(final, error):
    def fail(folder):
        (folder / "state.pt").write_bytes(b"half")
        raise error

    with pytest.raises(EnvironmentProblem, match=r"step_1 could not be written: .*(No space left|as a full one does)"):
        write_atomically(final, facts={"step": 2}, write=fail)
    assert_only_the_old_one_is_there(final)


@pytest.mark.parametrize("renames_that_work", [0, 1])
def test_a_failing_rename_leaves_the_old_folder(final, monkeypatch, renames_that_work):
    rename, calls = Path.rename, []

    def fail_once(path, target):
        calls.append(path)
        if len(calls) == renames_that_work + 1:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(EnvironmentProblem, match="Operation not permitted"):
        write_atomically(final, facts={"step": 2}, write=fill)
    assert_only_the_old_one_is_there(final)


def test_a_crash_before_the_rename_leaves_the_old_folder_and_the_next_write_succeeds(final, monkeypatch):
    class Crash(BaseException):
        pass

    def crash(path, target):
        raise Crash

    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(Crash):
        write_atomically(final, facts={"step": 2}, write=fill)
    monkeypatch.undo()
    assert damage(final) is None
    assert json.loads((final / MANIFEST).read_text())["step"] == 1
    write_atomically(final, facts={"step": 3}, write=fill)
    assert json.loads((final / MANIFEST).read_text())["step"] == 3
    assert list(final.parent.iterdir()) == [final]


def assert_only_the_old_one_is_there(final):
    assert list(final.parent.iterdir()) == [final]
    assert json.loads((final / MANIFEST).read_text())["step"] == 1
    assert damage(final) is None


def test_what_a_killed_writer_left_is_cleared_and_what_it_moved_away_is_put_back(final):
    parent = final.parent
    for name in (".step_2.tmp", ".step_3.deleting", ".step_1.older"):
        (parent / name).mkdir()
    moved = parent / ".step_4.older"
    write_atomically(parent / "step_4", facts={}, write=fill)
    (parent / "step_4").rename(moved)
    clear_leftovers(parent)
    assert sorted(path.name for path in parent.iterdir()) == ["step_1", "step_4"]
    assert damage(final) is None
    assert damage(parent / "step_4") is None
    clear_leftovers(parent / "absent")


def test_names_stay_those_of_checkpoints_that_were_written_before() -> None:
    names = checkpoint_layout
    assert (names.STATE, names.SHARDED, names.REST) == ("state.pt", "sharded", "meta.pt")
    assert (names.WEIGHTS, names.OPTIMIZERS, names.sharded_name(1)) == ("state_dict", "optimizer_states", "optimizer_1")
