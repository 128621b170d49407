import errno
import os
import stat

import pytest

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking import atomic_files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_file_is_replaced_whole_and_nothing_stays_aside(tmp_path):
    path = tmp_path / "a.json"
    atomic_files.write_json(path, {"step": 1})
    atomic_files.write_json(path, {"step": 2})

    assert atomic_files.read_json(path) == {"step": 2}
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize(("number", "fix"), [(errno.ENOSPC, "free some space"), (errno.EROFS, r"set run\.root")])
def test_failed_write_leaves_the_old_file_and_names_the_fix(tmp_path, monkeypatch, number, fix):
    path = tmp_path / "a.txt"
    atomic_files.write_text(path, "old")

    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(EnvironmentProblem, match=fix) as caught:
        atomic_files.write_text(path, "new")

    assert caught.value.exit_code == 3
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_private_file_is_readable_by_its_owner_alone(tmp_path):
    atomic_files.write_text(tmp_path / "config.yaml", "password: x", private=True)
    assert stat.S_IMODE((tmp_path / "config.yaml").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b'{"half": ', b"[1, 2]"])
def test_missing_or_broken_json_reads_as_empty(tmp_path, content):
    assert atomic_files.read_json(tmp_path / "missing.json") == {}
    (tmp_path / "broken.json").write_bytes(content)
    assert atomic_files.read_json(tmp_path / "broken.json") == {}


def test_what_is_read_moves_no_cursor(tmp_path):
    (tmp_path / "run.json").write_text('{"name": "a\\u001b[2Jb\\u0007\\u009b\\n\\té"}')
    assert atomic_files.read_json(tmp_path / "run.json") == {"name": "a\ufffd[2Jb\ufffd\ufffd\n\té"}
