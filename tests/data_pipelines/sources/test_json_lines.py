import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.json_lines import documents_of_lines
from lmtrain.errors import DataError


def read(lines, text_field="text"):
    return list(documents_of_lines(lines, name="notes.jsonl", place="my/notes.jsonl", text_field=text_field))


def test_each_line_is_a_document_named_by_its_number():
    lines = '{"text": "one", "id": 7}\n\n{"id": 8, "text": "two\\nlines"}\r\n'
    assert read(lines) == [Document("notes.jsonl:1", "one"), Document("notes.jsonl:3", "two\nlines")]


def test_line_separators_inside_a_text_do_not_end_a_line():
    assert read('{"text": "a\u2028b"}') == [Document("notes.jsonl:1", "a\u2028b")]


def test_null_is_skipped_with_the_reason():
    assert read('{"text": null}') == [Skipped("notes.jsonl:1", "null text")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"text": "a"}\n{"text": ', r"my/notes\.jsonl:2 is not JSON .*correct the line or remove it"),
        ("[1]", r"my/notes\.jsonl:1 is list instead of a JSON object"),
        (
            '{"tekst": "a", "id": 1}',
            r"source\.text_field=text is not in my/notes\.jsonl:1: it has tekst, id\. Did you mean 'tekst'",
        ),
        ('{"texts": "a"}', r"it has texts\. Did you mean 'texts'\?"),
        ("{}", "it has no fields"),
        ('{"text": 3}', r"source\.text_field=text of my/notes\.jsonl:1 is int instead of text"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(lines, message):
    with pytest.raises(DataError, match=message):
        read(lines)
