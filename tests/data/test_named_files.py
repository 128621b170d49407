"""Prompts, answers and texts come through the reader of sources: compressed, in other encodings, in any table."""

import gzip
from pathlib import Path

import pytest

from lmtrain.data.named_files import read_texts
from lmtrain.errors import ConfigurationError, DataError


def test_a_text_is_whole_without_its_mark_and_a_table_has_one_for_each_row(tmp_path: Path) -> None:
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbfHello.\n")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"Hello.\n"))
    (tmp_path / "rows.jsonl").write_text('{"text": "One."}\n{"text": "Two."}\n')
    assert read_texts(tmp_path / "bom.txt", flag="--text") == ["Hello.\n"]
    assert read_texts(tmp_path / "a.txt.gz", flag="--text") == ["Hello.\n"]
    assert read_texts(tmp_path / "rows.jsonl", flag="--text") == ["One.", "Two."]


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("latin.txt", "Größe".encode("latin-1") * 3, "--text: .*latin.txt must be UTF-8 text, but it has 6 invalid"),
        ("empty.txt", b"", "--text: .*empty.txt is empty"),
        ("rows.jsonl", b'{"text": "One."}\nnot JSON\n', "--text: rows.jsonl:2 is not JSON"),
        ("cut.txt.gz", gzip.compress(b"Hello." * 99, mtime=0)[:-9], "cut.txt.gz is damaged"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(name: str, data: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=problem):
        read_texts(tmp_path / name, flag="--text")
    with pytest.raises(ConfigurationError, match=r"--text: .* is not a file"):
        read_texts(tmp_path / "absent", flag="--text")
