import errno
import json
import os
from pathlib import Path

import pytest

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage import hashed_folder
from lmtrain.storage.hashed_folder import (
    MANIFEST,
    aside_of,
    clear_leftovers,
    damage,
    file_sha256,
    require_whole,
    write_atomically,
)


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


def test_a_folder_appears_with_its_files_and_its_facts(final):
    manifest = json.loads((final / MANIFEST).read_text())
    assert manifest["step"] == 1
    assert {name: num_bytes for name, (num_bytes, _) in manifest["files"].items()} == {"state.pt": 7, "shards/0.pt": 14}
    assert damage(final) is None
    assert list(final.parent.iterdir()) == [final]


def test_a_hash_is_that_of_the_published_example(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert file_sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_final_name_does_not_exist_while_the_folder_is_filled(tmp_path):
    final, seen = tmp_path / "step_1", []
    write_atomically(final, facts={}, write=lambda folder: seen.append((folder, final.exists())))
    assert seen == [(aside_of(final), False)]


def test_a_missing_file_is_named(final):
    (final / "shards" / "0.pt").unlink()
    assert damage(final) == "0.pt is missing"


def test_a_truncated_file_is_named_with_both_sizes(final):
    (final / "state.pt").write_bytes(b"weigh")
    assert damage(final) == "state.pt has 5 bytes instead of 7"


@pytest.mark.parametrize("name", ["state.pt", "shards/0.pt", MANIFEST])
def test_a_flipped_bit_in_any_byte_is_found(final, name):
    whole = (final / name).read_bytes()
    for index in range(len(whole)):
        flipped = bytearray(whole)
        flipped[index] ^= 1 << index % 8
        (final / name).write_bytes(flipped)
        assert damage(final), f"{name}: {bytes(flipped)!r}"


def test_facts_that_json_rewords_are_no_damage(tmp_path):
    facts = {
        "metrics": {"loss": float("nan"), "lr": 1e-5, "big": 1e300},
        "pair": (1, 2),
        "name": "é",
        "by_step": {3: None},
    }
    write_atomically(tmp_path / "step_1", facts=facts, write=fill)
    assert damage(tmp_path / "step_1") is None


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


def test_a_failing_fsync_is_told_and_leaves_the_old_folder(final, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(EnvironmentProblem, match="Input/output error"):
        write_atomically(final, facts={"step": 2}, write=fill)
    monkeypatch.undo()
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


def test_an_older_folder_of_the_same_name_is_replaced_as_a_whole(final):
    write_atomically(final, facts={"step": 2}, write=lambda folder: (folder / "other.pt").write_bytes(b"new"))
    assert sorted(path.name for path in final.iterdir()) == [MANIFEST, "other.pt"]
    assert damage(final) is None
    assert list(final.parent.iterdir()) == [final]


def test_everything_is_on_the_disk_before_the_name_appears(tmp_path, monkeypatch):
    """A power cut after the rename must not find a folder whose bytes are still in memory."""
    final, events, rename = tmp_path / "step_1", [], Path.rename
    monkeypatch.setattr(hashed_folder, "fsync", lambda path: events.append(path.name))
    monkeypatch.setattr(Path, "rename", lambda path, target: events.append("rename") or rename(path, target))
    write_atomically(final, facts={}, write=fill)
    before, after = events[: events.index("rename")], events[events.index("rename") + 1 :]
    assert set(before) == {"state.pt", "0.pt", "shards", MANIFEST, aside_of(final).name}
    assert after == [tmp_path.name]


def test_a_parent_that_cannot_be_written_is_a_problem_of_the_environment(tmp_path):
    (tmp_path / "runs").write_text("a file where a folder should be")
    with pytest.raises(EnvironmentProblem, match=r"step_1 could not be written: .*make the folder writable"):
        write_atomically(tmp_path / "runs" / "step_1", facts={}, write=fill)


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
