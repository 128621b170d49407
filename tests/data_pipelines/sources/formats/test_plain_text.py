import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.compression import PlainBytes
from data_pipelines.sources.formats import plain_text
from data_pipelines.sources.formats.plain_text import read_plain_text
from data_pipelines.sources.formats.reading import FileReading
from data_pipelines.sources.local_files import local_file
from lmtrain.errors import DataError


@pytest.fixture
def small(monkeypatch):
    """Cut files above 400 bytes into parts of about 40."""
    monkeypatch.setattr(plain_text, "MAX_WHOLE_BYTES", 400)
    monkeypatch.setattr(plain_text, "PART_BYTES", 40)


def read(tmp_path, content, *, name="a.txt", **kind):
    (tmp_path / name).write_bytes(content)
    file = local_file(tmp_path / name, name=name, **kind)
    return list(read_plain_text(file, FileReading(total_bytes=file.num_bytes)))


def test_a_file_is_a_document(tmp_path):
    assert read(tmp_path, b"# A\r\n") == [Document("a.txt", "# A\r\n")]
    assert read(tmp_path, b"") == [Document("a.txt", "")]


@pytest.mark.parametrize("border", ["\n\n", "\n", " ", ""])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_long_file_comes_in_parts_and_nothing_is_lost(tmp_path, small, border, name):
    text = border.join(f"wörd{number}" for number in range(200))
    content = text.encode()
    parts = read(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name=name)
    assert [part.id for part in parts] == [f"{name}#{number}" for number in range(len(parts))]
    assert "".join(part.text for part in parts) == text
    assert all(len(part.text.encode()) <= 80 for part in parts)
    if border:
        assert all(part.text.endswith(border) for part in parts[:-1])


def test_parts_do_not_depend_on_how_much_is_read_at_once(tmp_path, small, monkeypatch):
    content = b" ".join(b"word%d" % number for number in range(300))
    whole = read(tmp_path, content)
    monkeypatch.setattr(plain_text, "MAX_WHOLE_BYTES", 137)
    assert read(tmp_path, content) == whole


def test_a_binary_part_is_skipped_and_the_others_are_there(tmp_path, small):
    parts = read(tmp_path, b"good text " * 30 + b"\0" * 10 + b" good text" * 30)
    assert {type(part) for part in parts} == {Document, Skipped}
    assert {part.reason for part in parts if isinstance(part, Skipped)} == {"not UTF-8 text"}


def test_a_binary_file_is_skipped_when_come_upon_and_refused_when_named(tmp_path):
    assert read(tmp_path, b"a\0b") == [Skipped("a.txt", "not UTF-8 text")]
    with pytest.raises(DataError, match=r"a\.txt is not UTF-8 text: it has NUL bytes .*Convert it, or leave it out of"):
        read(tmp_path, b"a\0b", is_named=True)


@pytest.mark.slow
def test_a_line_of_200_mb_is_read_in_little_memory(tmp_path):
    import tracemalloc

    with (tmp_path / "a.txt").open("wb") as file:
        for _ in range(200):
            file.write(b"0123456789" * 100_000)
    found = local_file(tmp_path / "a.txt", name="a.txt")
    tracemalloc.start()
    num_characters = sum(len(part.text) for part in read_plain_text(found, FileReading(total_bytes=1)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_characters == 200_000_000
    assert peak < 100_000_000


class FewBytesAtATime:
    """A stream that gives less than it is asked for, as decompressors may."""

    def __init__(self, content):
        self.content = io.BytesIO(content)

    def read(self, num_bytes):
        return self.content.read(min(num_bytes, 3))


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("aé€😀 \n"), min_size=1, max_size=900))
def test_the_parts_of_any_text_are_whole_characters_and_all_of_it(text):
    content = text.encode()
    stream = FewBytesAtATime(content[100:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_text, "MAX_WHOLE_BYTES", 50)
        patch.setattr(plain_text, "PART_BYTES", 20)
        parts = list(plain_text._parts(content[:100], PlainBytes(stream, raw=stream, address="a")))
    assert "".join(part.decode() for part in parts) == text
