import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.sources.compression import PlainBytes
from data_pipelines.sources.formats.lines import numbered_lines


def lines(content, **settings):
    stream = io.BytesIO(content)
    return list(numbered_lines(PlainBytes(stream, raw=stream, address="a"), **settings))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a", [(1, b"a")]),
        (b"a\n", [(1, b"a")]),
        (b"a\r\n\nb\n", [(1, b"a"), (2, b""), (3, b"b")]),
        ("a\u2028b\x85".encode(), [(1, "a\u2028b\x85".encode())]),
    ],
)
def test_only_a_newline_ends_a_line(content, expected):
    assert lines(content) == expected


def test_lines_that_cross_chunks_are_whole(monkeypatch):
    monkeypatch.setattr("data_pipelines.sources.formats.lines.CHUNK_BYTES", 3)
    assert lines(b"one\ntwo and\nthree") == [(1, b"one"), (2, b"two and"), (3, b"three")]


@pytest.mark.parametrize("chunk_bytes", [2, 1000])
def test_a_line_that_is_too_long_is_none_and_those_around_it_are_there(chunk_bytes, monkeypatch):
    monkeypatch.setattr("data_pipelines.sources.formats.lines.CHUNK_BYTES", chunk_bytes)
    assert lines(b"one\n" + b"x" * 11 + b"\nfour\n", max_bytes=10) == [(1, b"one"), (2, None), (3, b"four")]
    assert lines(b"x" * 11, max_bytes=10) == [(1, None)]
    assert lines(b"x" * 10, max_bytes=10) == [(1, b"x" * 10)]


def test_a_long_line_is_never_held_whole():
    class Endless(io.RawIOBase):
        left = 200

        def read(self, num_bytes=-1):
            self.left -= 1
            return b"x" * num_bytes if self.left > 0 else b""

    import tracemalloc

    tracemalloc.start()
    stream = Endless()
    assert list(numbered_lines(PlainBytes(stream, raw=stream, address="a"), max_bytes=4_000_000)) == [(1, None)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000  # of 208 MB


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=60), chunk_bytes=st.integers(1, 20), max_bytes=st.integers(1, 20))
def test_any_bytes_give_the_lines_of_split_whatever_is_read_at_once(content, chunk_bytes, max_bytes):
    content = content.replace(b"\xef\xbb\xbf", b"").replace(b"a", b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_pipelines.sources.formats.lines.CHUNK_BYTES", chunk_bytes)
        found = lines(content, max_bytes=max_bytes)
    expected = content.split(b"\n")
    expected = expected[:-1] if not expected[-1] else expected
    whole = [line.removesuffix(b"\r") if len(line) <= max_bytes else None for line in expected]
    assert found == list(enumerate(whole, start=1))
