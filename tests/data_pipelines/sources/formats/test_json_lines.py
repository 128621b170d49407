import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.columns import Column
from data_pipelines.sources.formats.json_lines import _plain_row_of, check_json_lines, read_json_lines
from data_pipelines.sources.formats.reading import FileReading
from data_pipelines.sources.local_files import local_file
from lmtrain.errors import DataError

TEXT = Column("text")


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "notes.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return local_file(path, name="notes.jsonl")

    return write


def read(file, column=TEXT):
    return list(read_json_lines(file, column, FileReading(total_bytes=file.num_bytes)))


def test_each_line_is_a_document_named_by_its_number(written):
    lines = '{"text": "one", "id": 7}\n\n{"id": 8, "text": "two\\nlines"}\r\n'
    assert read(written(lines)) == [Document("notes.jsonl:1", "one"), Document("notes.jsonl:3", "two\nlines")]


def test_line_separators_inside_a_text_do_not_end_a_line(written):
    assert read(written('{"text": "a\u2028b"}')) == [Document("notes.jsonl:1", "a\u2028b")]


def test_conversations(written):
    messages = [{"role": "user", "content": "Hi"}]
    (document,) = read(written(json.dumps({"chat": messages})), Column("chat", is_messages=True))
    assert document == Document("notes.jsonl:1", "", tuple(messages))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": null}', "null text"),
        ('{"text": ', "not JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "JSON nested too deep"),
        ('{"tekst": "a"}', "no text in the row"),
        ('{"text": 3}', "text is int instead of text"),
        (b'{"text": "Gr\xf6\xdfe"}', "not UTF-8 text"),
        (b'{"text": "a\0b"}', "not UTF-8 text"),
    ],
)
def test_a_bad_line_is_skipped_with_the_reason_and_the_rest_is_read(written, line, reason):
    line = line if isinstance(line, bytes) else line.encode()
    good = [Document("notes.jsonl:1", "a"), Document("notes.jsonl:3", "b")]
    found = read(written(b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n'))
    assert found == [good[0], Skipped("notes.jsonl:2", reason), good[1]]


def test_a_line_that_is_too_long_is_skipped_with_the_reason(written, monkeypatch):
    monkeypatch.setattr("data_pipelines.sources.formats.lines.CHUNK_BYTES", 100)
    monkeypatch.setattr(
        "data_pipelines.sources.formats.json_lines.numbered_lines.__kwdefaults__", {"max_bytes": 50}, raising=False
    )
    file = written('{"text": "a"}\n{"text": "' + "x" * 1000 + '"}\n{"text": "b"}\n')
    assert [item for item in read(file) if isinstance(item, Skipped)] == [
        Skipped("notes.jsonl:2", "a line of more than 64 MB")
    ]
    assert len(read(file)) == 3


def test_a_stray_byte_is_replaced_and_noted(written):
    file = written(b'{"text": "' + b"x" * 300 + b'\xff"}')
    reading = FileReading(total_bytes=1)
    (document,) = read_json_lines(file, TEXT, reading)
    assert document.text == "x" * 300 + "\ufffd"
    assert (reading.utf8.first or "").endswith("notes.jsonl:1")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"tekst": "a", "id": 1}', r"source\.text_column=text is not a column of .*notes\.jsonl: it has tekst, id\."),
        ('\n{"text": ', r"notes\.jsonl:2 is not JSON; JSON lines are an object a line, such as \{'text': \.\.\.\}"),
        ("[1]", r"notes\.jsonl:1 is not a JSON object"),
    ],
)
def test_a_file_without_the_column_or_without_json_is_refused_before_the_work(written, lines, message):
    with pytest.raises(DataError, match=message):
        check_json_lines(written(lines), TEXT)


@pytest.mark.parametrize("lines", ["", '{"id": 1}\n{"text": "a"}', 'oops\n{"text": "a"}', '{"id": 1}\n' * 100 + "{"])
def test_a_column_that_is_in_some_line_or_an_empty_file_passes(written, lines):
    if '"text"' in lines or not lines:
        check_json_lines(written(lines), TEXT)
    else:
        with pytest.raises(DataError, match="it has id"):
            check_json_lines(written(lines), TEXT)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(st.dictionaries(TEXTS, JSON_VALUES, max_size=3), st.booleans())
@example({"text": "\ud83d\ude00 \x7f\u2028", "n": 10**400, "x": float("nan"), "y": -0.0}, True)
def test_the_short_way_to_a_row_gives_what_json_gives(row, ascii_only):
    line = json.dumps(row, ensure_ascii=ascii_only).encode()
    assert repr(_plain_row_of(line)) == repr(json.loads(line))


@pytest.mark.parametrize(
    "line", [b'{"text": "\\ud800"}', b'{"text": "\xff"}', b'{"a": "\0"}', b"[1]", b'{"a": 1} 2', b""]
)
def test_the_short_way_leaves_every_odd_line_to_the_long_one(line):
    assert _plain_row_of(line) is None


def test_of_a_name_that_is_there_twice_the_last_counts_as_to_json():
    assert _plain_row_of(b'{"text": "a", "text": "b"}') == {"text": "b"}
