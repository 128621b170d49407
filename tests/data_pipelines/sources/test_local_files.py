import os

import pytest

from data_pipelines.sources.found_file import FoundFile
from data_pipelines.sources.local_files import find_local, fingerprint_files, local_file, walk
from lmtrain.errors import DataError


@pytest.fixture
def notes(tmp_path, monkeypatch):
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("b.txt", "a.MD", "deep/c.txt", ".hidden/d.txt", ".e.txt"):
        (folder / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return folder


def names(named):
    return sorted(file.name for file in find_local(named) if isinstance(file, FoundFile))


def test_a_folder_gives_all_its_files_but_hidden_ones(notes):
    assert names("notes") == ["notes/a.MD", "notes/b.txt", "notes/deep/c.txt"]


def test_the_names_do_not_depend_on_how_the_folder_is_written(notes, monkeypatch):
    expected = names("notes")
    assert names("./notes/") == names(str(notes)) == names("notes/../notes") == expected
    monkeypatch.chdir(notes)
    assert names(".") == expected


def test_a_file_is_one_that_was_named(notes):
    (file,) = find_local("notes/b.txt")
    assert (file.name, file.is_named, file.is_searched_for, file.num_bytes) == ("b.txt", True, False, 5)


def test_a_glob_takes_what_it_matches(notes):
    assert names("notes/**/*.txt") == ["notes/b.txt", "notes/deep/c.txt"]


def test_a_home_folder_is_expanded(notes, monkeypatch):
    monkeypatch.setenv("HOME", str(notes.parent))
    assert names("~/notes/b.txt") == ["b.txt"]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("note", r"source\.paths: note does not exist .*Did you mean 'notes'\?"),
        ("notes/deeep", r"source\.paths: notes/deeep does not exist .*Did you mean 'notes/deep'\?"),
        ("notes/*.csv", r"source\.paths: notes/\*\.csv matches no file"),
    ],
)
def test_what_is_not_there_is_refused(notes, named, message):
    with pytest.raises(DataError, match=message):
        names(named)


def test_pipes_and_links_that_lead_nowhere_are_left_alone(notes):
    os.mkfifo(notes / "pipe.txt")
    (notes / "link.txt").symlink_to("nowhere")
    assert names("notes") == ["notes/a.MD", "notes/b.txt", "notes/deep/c.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_folder_without_permission_is_refused_rather_than_left_out(notes):
    (notes / "deep").chmod(0)
    try:
        with pytest.raises(DataError, match="deep cannot be read: Permission denied"):
            names("notes")
    finally:
        (notes / "deep").chmod(0o700)


def test_a_folder_that_cannot_be_listed_is_refused(notes, monkeypatch):
    def refuse(top, *, onerror):
        onerror(PermissionError(13, "Permission denied", str(top)))
        yield from ()

    monkeypatch.setattr("os.walk", refuse)
    with pytest.raises(DataError, match=r"notes cannot be read: Permission denied\. Make it readable"):
        list(walk(notes))


def test_the_fingerprint_follows_names_and_contents_not_times(notes):
    def fingerprint():
        return fingerprint_files(find_local("notes"))

    before = fingerprint()
    os.utime(notes / "b.txt", (1, 1))
    assert fingerprint() == before
    (notes / "b.txt").write_text("B.TXT")
    changed = fingerprint()
    assert changed != before
    (notes / "b.txt").rename(notes / "z.txt")
    assert fingerprint() not in {before, changed}


def test_beyond_256_mb_the_fingerprint_follows_sizes_and_times(notes, monkeypatch):
    monkeypatch.setattr("data_pipelines.sources.local_files.HASHED_WHOLE_BYTES", 2)
    before = fingerprint_files(find_local("notes"))
    assert fingerprint_files(find_local("notes")) == before
    os.utime(notes / "b.txt", (1, 1))
    assert fingerprint_files(find_local("notes")) != before


def test_a_file_that_is_gone_when_it_is_hashed_is_refused(notes):
    file = local_file(notes / "b.txt", name="b.txt")
    (notes / "b.txt").unlink()
    with pytest.raises(DataError, match=r"b\.txt cannot be read: No such file"):
        fingerprint_files([file])


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "text.txt")
    with pytest.raises(DataError, match=r"text\.txt is a pipe or a device, .*write it to a file"):
        list(find_local(str(tmp_path / "text.txt")))


def test_a_file_that_nobody_touched_is_hashed_once_and_any_change_is_seen(notes, monkeypatch):
    known = {}
    before = fingerprint_files(find_local("notes"), known=known)
    num_hashed = len(known)
    assert fingerprint_files(find_local("notes"), known=known) == before
    assert len(known) == num_hashed == len(list(find_local("notes")))
    status = (notes / "b.txt").stat()
    (notes / "b.txt").write_text("B.TXT"[: status.st_size].ljust(status.st_size))
    os.utime(notes / "b.txt", ns=(status.st_atime_ns, status.st_mtime_ns))  # same size, same time: another change time
    assert fingerprint_files(find_local("notes"), known=known) != before


def test_beyond_256_mb_a_change_since_the_files_were_found_is_seen(notes, monkeypatch):
    monkeypatch.setattr("data_pipelines.sources.local_files.HASHED_WHOLE_BYTES", 2)
    found = list(find_local("notes"))
    before = fingerprint_files(found)
    os.utime(notes / "b.txt", (1, 1))
    assert fingerprint_files(found) != before
