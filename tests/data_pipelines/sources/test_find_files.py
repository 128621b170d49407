import gzip
import os

import fsspec
import pytest

from data_pipelines.sources.find_files import find_files
from lmtrain.errors import DataError

SUFFIXES = frozenset({".txt", ".md"})


@pytest.fixture
def notes(tmp_path, monkeypatch):
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("b.txt", "a.MD", "c.txt.gz", "photo.jpg", "scan.jpg", "README"):
        (folder / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return folder


def names(*paths):
    return [file.name for file in find_files(paths, suffixes=SUFFIXES).files]


def test_a_folder_is_searched_by_the_suffix_before_that_of_a_compression(notes):
    found = find_files(["notes"], suffixes=SUFFIXES)
    assert [file.name for file in found.files] == ["notes/README", "notes/a.MD", "notes/b.txt", "notes/c.txt.gz"]
    assert found.left_out == {".jpg": 2}


def test_a_file_or_a_glob_takes_whatever_it_names(notes):
    assert names("notes/photo.jpg") == ["photo.jpg"]
    assert names("notes/*.jpg") == ["notes/photo.jpg", "notes/scan.jpg"]


def test_a_file_named_twice_is_taken_once_by_path_or_by_address(notes):
    expected = ["notes/README", "notes/a.MD", "notes/b.txt", "notes/c.txt.gz"]
    assert names("notes", "notes/b.txt", "notes/*.txt", f"file://{notes}/b.txt") == expected


def test_files_of_one_name_in_two_folders_are_both_there(notes, tmp_path):
    other = tmp_path / "other" / "notes"
    other.mkdir(parents=True)
    (other / "b.txt").write_text("another b")
    assert names("notes", "other/notes").count("notes/b.txt") == 2


def test_folders_and_addresses_go_together(notes):
    fsspec.filesystem("memory").pipe("/bucket/more/z.txt", b"z")
    assert names("notes", "memory://bucket/more")[-1] == "notes/c.txt.gz"
    assert "more/z.txt" in names("notes", "memory://bucket/more")


def test_a_folder_without_text_says_what_it_holds(tmp_path):
    for name in ("a.pdf", "b.pdf", "c"):
        (tmp_path / name).write_bytes(b"\0x")
    with pytest.raises(
        DataError, match=r"holds no text file: 2 \.pdf, 1 binary files without a suffix\. .*source\.more_suffixes"
    ):
        names(str(tmp_path))


def test_an_empty_folder_says_so(tmp_path):
    with pytest.raises(DataError, match="holds no text file: no file at all"):
        names(str(tmp_path))


def test_text_without_a_suffix_is_taken_from_a_folder_and_all_else_is_counted(tmp_path):
    licences = tmp_path / "licences"
    (licences / "old").mkdir(parents=True)
    (licences / "GPL-2.1").write_text("a version is no suffix")
    (licences / "COPYING").write_text("é" * 5000)  # cut inside a character by the look at its beginning
    (licences / "LICENSE.gz").write_bytes(gzip.compress(b"compressed text"))
    (licences / "core").write_bytes(b"\x7fELF\0\1")
    (licences / "latin").write_bytes("Gruß".encode("latin-1"))
    (licences / "GPL").symlink_to("GPL-2.1")
    (licences / "gone").symlink_to("nowhere")
    (licences / "again").symlink_to("old")
    os.mkfifo(licences / "pipe")
    found = find_files([str(licences)], suffixes=SUFFIXES)
    assert [file.name for file in found.files] == ["licences/COPYING", "licences/GPL-2.1", "licences/LICENSE.gz"]
    assert found.left_out == {
        "binary files without a suffix": 2,
        "links to files taken already": 1,
        "broken links": 1,
        "links to folders": 1,
        "pipes or devices": 1,
    }
