"""Finding files here and at addresses, and the fingerprint of what was found."""

import gzip
import json
import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipelines.sources.files import Files
from data_pipelines.sources.find_files import (
    find_files,
    find_local,
    find_remote,
)
from lmtrain.errors import DataError

ROWS = [{"text": "one", "id": 1}, {"text": "two", "id": 2}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def parquet(rows):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def notes(tmp_path):
    (tmp_path / "a.md").write_text("# A\n")
    (tmp_path / "b.jsonl").write_text(LINES)
    (tmp_path / "c.py").write_bytes(b"\0\1\2")
    (tmp_path / "d.txt").write_text("")
    return tmp_path


@pytest.mark.parametrize("other", [{"text_column": "body"}, {"messages_column": "text"}, {"format": "text"}])
def test_the_fingerprint_follows_content_and_what_is_read_of_it(notes, other):
    before = Files(paths=[str(notes)]).fingerprint()
    assert Files(paths=[str(notes)]).fingerprint() == before
    assert Files(paths=[str(notes)], text_column="text").fingerprint() == before
    assert Files(paths=[str(notes)], **other).fingerprint() != before
    (notes / "a.md").write_text("# B\n")
    assert Files(paths=[str(notes)]).fingerprint() != before


def test_validation_paths_come_first_and_only_they_name_a_split(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "held.jsonl").write_text(LINES)
    plain = Files(paths=[str(tmp_path / "*.txt")])
    held_out = [str(tmp_path / "held.jsonl"), str(tmp_path / "b.txt")]
    source = Files(paths=[str(tmp_path / "*.txt")], validation_paths=held_out)
    assert [(document.text, document.split) for document in source.documents()] == [
        ("b", "validation"), ("one", "validation"), ("two", "validation"), ("a", None), ("c", None),
    ]  # fmt: skip
    pieces = [document.split for index in range(source.num_pieces()) for document in source.piece(index)]
    assert pieces == ["validation"] * 3 + [None] * 2
    assert source.names_validation
    assert not plain.names_validation
    assert source.fingerprint() != plain.fingerprint()
    assert Files(paths=[str(tmp_path / "*.txt")], validation_paths=[]).fingerprint() == plain.fingerprint()


SUFFIXES = frozenset({".txt", ".md"})


def names(*paths):
    return [file.name for file in find_files(paths, suffixes=SUFFIXES).files]


def test_a_folder_without_text_says_what_it_holds(tmp_path):
    for name in ("a.pdf", "b.pdf", "c"):
        (tmp_path / name).write_bytes(b"\0x")
    with pytest.raises(
        DataError, match=r"holds no text file: 2 \.pdf, 1 binary files without a suffix\. .*source\.more_suffixes"
    ):
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
    assert found.left_out == {"binary files without a suffix": 2, "links to files taken already": 1}


@pytest.fixture
def notes_local_files(tmp_path, monkeypatch):
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("b.txt", "a.MD", "deep/c.txt", ".hidden/d.txt", ".e.txt"):
        (folder / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return folder


def names_local_files(named):
    return sorted(file.name for file in find_local(named))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("note", r"source\.paths: note does not exist .*Did you mean 'notes'\?"),
        ("notes/deeep", r"source\.paths: notes/deeep does not exist .*Did you mean 'notes/deep'\?"),
        ("notes/*.csv", r"source\.paths: notes/\*\.csv matches no file"),
    ],
)
def test_what_is_not_there_is_refused(notes_local_files, named, message):
    with pytest.raises(DataError, match=message):
        names_local_files(named)


@pytest.fixture(autouse=True)
def bucket():
    store = fsspec.filesystem("memory")
    store.store.clear()
    for name in ("b.txt", "a.md", "deep/c.txt", ".hidden/d.txt"):
        store.pipe(f"/bucket/notes/{name}", name.encode())
    return store


@pytest.mark.parametrize("named", ["memory://bucket/nowhere", "memory://bucket/*.csv"])
def test_what_is_not_there_is_refused_addresses(named):
    with pytest.raises(DataError, match="no file at"):
        list(find_remote(named))
