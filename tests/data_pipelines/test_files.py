"""Finding files here and at addresses, and the fingerprint of what was found."""

import gzip
import json
import os

import pytest

from data_pipelines.sources.files import Files
from data_pipelines.sources.find_files import find_files
from lmtrain.errors import DataError

ROWS = [{"text": "one", "id": 1}, {"text": "two", "id": 2}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


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


def test_a_folder_without_text_says_what_it_holds(tmp_path):
    for name in ("a.pdf", "b.pdf", "c"):
        (tmp_path / name).write_bytes(b"\0x")
    with pytest.raises(
        DataError, match=r"holds no text file: 2 \.pdf, 1 binary files without a suffix\. .*source\.more_suffixes"
    ):
        find_files([str(tmp_path)], suffixes=SUFFIXES)


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
