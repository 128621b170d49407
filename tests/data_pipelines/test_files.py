"""Finding files here and at addresses, and the fingerprint of what was found."""

import gzip
import json
import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.files import Files
from data_pipelines.sources.find_files import (
    find_files,
    find_local,
    find_remote,
    fingerprint_files,
)
from lmtrain.data.text_files import FoundFile
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


def test_files_and_rows_become_documents_in_order(notes):
    name = notes.name
    source = Files(paths=[str(notes)])
    assert list(source.documents()) == [
        Document(f"{name}/a.md", "# A\n"),
        Document(f"{name}/b.jsonl:1", "one"),
        Document(f"{name}/b.jsonl:2", "two"),
        Skipped(f"{name}/c.py", "not UTF-8 text"),
        Document(f"{name}/d.txt", ""),
    ]
    assert source.fraction_read == 1


def test_more_suffixes_are_found_in_folders_and_others_are_told(notes, capsys):
    (notes / "e.log").write_text("log")
    (notes / "f.jpg").write_text("jpg")
    ids = [document.id for document in Files(paths=[str(notes)], more_suffixes=[".LOG"]).documents()]
    assert f"{notes.name}/e.log" in ids
    assert capsys.readouterr().err == "  files left out: 1 .jpg (source.more_suffixes takes more)\n"


@pytest.mark.parametrize("name", ["d.txt", "e.jsonl", "f.csv"])
def test_an_empty_file_that_was_named_is_refused(notes, name):
    (notes / name).write_text("text\n" if name == "f.csv" else "")
    with pytest.raises(DataError, match=rf"source\.paths: .*{name} is empty"):
        list(Files(paths=[str(notes / name)]).documents())


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
    assert found.left_out == {
        "binary files without a suffix": 2,
        "links to files taken already": 1,
        "broken links": 1,
        "links to folders": 1,
        "pipes or devices": 1,
    }


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
    return sorted(file.name for file in find_local(named) if isinstance(file, FoundFile))


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


def test_pipes_and_links_that_lead_nowhere_are_left_alone(notes_local_files):
    os.mkfifo(notes_local_files / "pipe.txt")
    (notes_local_files / "link.txt").symlink_to("nowhere")
    assert names_local_files("notes") == ["notes/a.MD", "notes/b.txt", "notes/deep/c.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_folder_without_permission_is_refused_rather_than_left_out(notes_local_files):
    (notes_local_files / "deep").chmod(0)
    try:
        with pytest.raises(DataError, match="deep cannot be read: Permission denied"):
            names_local_files("notes")
    finally:
        (notes_local_files / "deep").chmod(0o700)


def test_the_fingerprint_follows_names_and_contents_not_times(notes_local_files):
    def fingerprint():
        return fingerprint_files(find_local("notes"))

    before = fingerprint()
    os.utime(notes_local_files / "b.txt", (1, 1))
    assert fingerprint() == before
    (notes_local_files / "b.txt").write_text("B.TXT")
    changed = fingerprint()
    assert changed != before
    (notes_local_files / "b.txt").rename(notes_local_files / "z.txt")
    assert fingerprint() not in {before, changed}


def test_beyond_256_mb_the_fingerprint_follows_sizes_and_times(notes_local_files, monkeypatch):
    monkeypatch.setattr("data_pipelines.sources.find_files.HASHED_WHOLE_BYTES", 2)
    before = fingerprint_files(find_local("notes"))
    assert fingerprint_files(find_local("notes")) == before
    os.utime(notes_local_files / "b.txt", (1, 1))
    assert fingerprint_files(find_local("notes")) != before


def test_a_file_that_nobody_touched_is_hashed_once_and_any_change_is_seen(notes_local_files, monkeypatch):
    known = {}
    before = fingerprint_files(find_local("notes"), known=known)
    num_hashed = len(known)
    assert fingerprint_files(find_local("notes"), known=known) == before
    assert len(known) == num_hashed == len(list(find_local("notes")))
    status = (notes_local_files / "b.txt").stat()
    (notes_local_files / "b.txt").write_text("B.TXT"[: status.st_size].ljust(status.st_size))
    os.utime(
        notes_local_files / "b.txt", ns=(status.st_atime_ns, status.st_mtime_ns)
    )  # same size, same time: another change time
    assert fingerprint_files(find_local("notes"), known=known) != before


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
