import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.columns import Column
from data_pipelines.sources.formats.delimited import check_delimited, read_delimited
from data_pipelines.sources.formats.reading import FileReading
from data_pipelines.sources.local_files import local_file
from lmtrain.errors import DataError

TEXT = Column("text")


@pytest.fixture
def written(tmp_path):
    def write(content, name="table.csv"):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return local_file(tmp_path / name, name=name)

    return write


def read(file, column=TEXT, delimiter=","):
    return list(read_delimited(file, column, FileReading(total_bytes=file.num_bytes), delimiter=delimiter))


def test_each_row_is_a_document_named_by_its_line(written):
    table = 'id,text\n1,one\n\n2,"two, ""quoted""\non two lines"\n3,three\n'
    assert read(written(table)) == [
        Document("table.csv:2", "one"),
        Document("table.csv:5", 'two, "quoted"\non two lines'),
        Document("table.csv:6", "three"),
    ]


def test_tabs_separate_a_tsv(written):
    assert read(written("id\ttext\r\n1\ta, b\r\n", "table.tsv"), delimiter="\t") == [Document("table.tsv:2", "a, b")]


def test_a_field_may_be_long(written):
    assert len(read(written(f"text\n{'x' * 200_000}\n"))[0].text) == 200_000  # above what `csv` allows as it comes


def test_a_row_of_another_shape_is_skipped_with_the_reason(written):
    reason = "a row with more or fewer fields than columns"
    assert read(written("id,text\n1\n2,b\n3,c,d\n")) == [
        Skipped("table.csv:2", reason),
        Document("table.csv:3", "b"),
        Skipped("table.csv:4", reason),
    ]


@pytest.mark.parametrize("content", ["", "text\n"])
def test_a_table_without_rows_gives_none(written, content):
    assert read(written(content)) == []
    check_delimited(written(content), TEXT, delimiter=",")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text\na\n"never closed\nb\n', r"table\.csv:3 is not a row of a table: .*a quote that is never closed"),
        ('text\n"a"b\n', r"table\.csv:2 is not a row of a table"),
        ("text\nGröße\n".encode("latin-1"), r"table\.csv:2 is not UTF-8 text: it has 2 invalid sequences"),
        (b"text\na\0b\n", r"table\.csv:2 is not UTF-8 text: it has NUL bytes"),
        ("txt,id\na,1\n", r"source\.text_column=text is not a column .*: it has txt, id\. Did you mean 'txt'\?"),
    ],
)
def test_a_table_that_cannot_be_told_into_rows_is_refused_with_the_line(written, content, message):
    with pytest.raises(DataError, match=message):
        read(written(content))


def test_a_missing_column_is_refused_before_the_work(written):
    with pytest.raises(DataError, match="it has txt"):
        check_delimited(written("txt\na\n"), TEXT, delimiter=",")


def test_a_line_that_is_too_long_is_refused(written, monkeypatch):
    monkeypatch.setattr("data_pipelines.sources.formats.delimited.numbered_lines", lambda content: iter([(7, None)]))
    with pytest.raises(DataError, match=r"table\.csv:7 is longer than 64 MB"):
        read(written("text\n"))
