import gzip
from functools import partial

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipelines.sources import compression
from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.columns import Column
from data_pipelines.sources.formats import parquet
from data_pipelines.sources.formats.parquet import check_parquet, read_parquet
from data_pipelines.sources.formats.reading import FileReading
from data_pipelines.sources.found_file import FoundFile
from data_pipelines.sources.local_files import local_file
from lmtrain.errors import DataError
from lmtrain.storage.bounded_memory import bounded_memory
from tests.parquet_bombs import write_bomb

TEXT, CHAT = Column("text"), Column("chat", is_messages=True)
MESSAGES = [{"role": "user", "content": "Hi"}]
TABLE = pa.table({"text": ["a", None, "c"], "number": [1, 2, 3], "chat": [MESSAGES, None, []]})


@pytest.fixture
def file(tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet")
    return local_file(tmp_path / "t.parquet", name="t.parquet")


def read(file, column=TEXT):
    return list(read_parquet(file, column, FileReading(total_bytes=file.num_bytes)))


def test_rows_are_documents_and_nulls_are_skipped_with_the_reason(file):
    expected = [Document("t.parquet:1", "a"), Skipped("t.parquet:2", "null text"), Document("t.parquet:3", "c")]
    assert read(file) == expected


def test_conversations(file):
    first, second, third = read(file, CHAT)
    assert [dict(message) for message in first.messages or ()] == MESSAGES
    assert (second.reason, third.reason) == ("null messages", "no messages")


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_text_is_text(tmp_path, kind):
    pq.write_table(pa.table({"text": pa.array(["a", "b", "a"]).cast(kind)}), tmp_path / "t.parquet")
    assert [item.text for item in read(local_file(tmp_path / "t.parquet", name="t"))] == ["a", "b", "a"]


@pytest.mark.parametrize("check", [check_parquet, read])
@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            Column("txt"),
            r"source\.text_column=txt is not a column of .*t\.parquet: it has text, number, chat\. Did you",
        ),
        (Column("number"), r"source\.text_column=number of .* holds int64 instead of text; columns that fit: text\."),
        (Column("number", is_messages=True), r"holds int64 instead of messages; columns that fit: chat\."),
    ],
)
def test_a_wrong_column_is_refused_with_the_right_ones(file, check, column, message):
    with pytest.raises(DataError, match=message):
        check(file, column)


def test_a_compressed_one_and_one_elsewhere(file, tmp_path):
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet.gz").write_bytes(gzip.compress(content))
    assert len(read(local_file(tmp_path / "t.parquet.gz", name="t.parquet.gz"))) == 3
    fsspec.filesystem("memory").pipe("/bucket/t.parquet", content)
    address = "memory://bucket/t.parquet"
    assert len(read(FoundFile(name="t.parquet", address=address, num_bytes=9, changed="1"))) == 3


@pytest.mark.parametrize("where", ["footer", "pages", "cut"])
def test_a_damaged_file_is_refused(tmp_path, where):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": [f"text {n} " * 40 for n in range(5000)]}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    if where == "cut":
        content = content[:-100]
    else:
        place = len(content) - 30 if where == "footer" else 10
        content[place : place + 20] = b"\xff" * 20
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"t\.parquet is damaged"):
        read(local_file(path, name="t.parquet"))


def test_how_far_the_reading_is_goes_by_rows(tmp_path):
    pq.write_table(pa.table({"text": [str(n) for n in range(1000)]}), tmp_path / "t.parquet")
    file = local_file(tmp_path / "t.parquet", name="t")
    reading = FileReading(total_bytes=file.num_bytes)
    fractions = [reading.fraction() or 0.0 for _ in read_parquet(file, TEXT, reading)]
    assert fractions == sorted(fractions)
    assert 0.7 < fractions[-1] < 1


def test_memory_does_not_follow_the_size_of_the_file(tmp_path):
    with pq.ParquetWriter(tmp_path / "t.parquet", pa.schema([("text", pa.string())])) as writer:
        for group in range(20):
            writer.write_table(pa.table({"text": [f"{group} {row} " * 100 for row in range(2000)]}))
    before = pa.total_allocated_bytes()
    peak = 0
    for number, _ in enumerate(
        read_parquet(local_file(tmp_path / "t.parquet", name="t"), TEXT, FileReading(total_bytes=1))
    ):
        if number % 1000 == 0:
            peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 12_000_000  # of 36 MB of text


@pytest.mark.parametrize("as_numbers", [False, True])
def test_equal_texts_without_end_are_refused_once_they_are_too_many(tmp_path, monkeypatch, as_numbers):
    monkeypatch.setattr(compression, "MOST_CONTENT_BYTES", 1 << 24)
    write_bomb(tmp_path / "t.parquet", num_rows=1_000_000, text_bytes=100_000, as_numbers=as_numbers)  # 100 GB
    file, found = local_file(tmp_path / "t.parquet", name="t.parquet"), []
    with pytest.raises(
        DataError, match=r"t\.parquet holds more than [\d,]+ bytes of this column, in [\d,]+ bytes; write"
    ):
        found += read_parquet(file, TEXT, FileReading(total_bytes=1))
    assert sum(len(item.text) for item in found) <= compression.most_content_bytes(file.num_bytes)


def test_what_a_footer_says_of_its_pages_is_refused_before_any_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "MOST_CONTENT_BYTES", 1 << 20)
    texts = pa.table({"text": ["a" * (1 << 25)]})
    pq.write_table(texts, tmp_path / "t.parquet", compression="zstd", use_dictionary=False)
    with pytest.raises(DataError, match="bytes of this column"):
        check_parquet(local_file(tmp_path / "t.parquet", name="t.parquet"), TEXT)


def test_rows_beyond_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "bounded_memory", partial(bounded_memory, more_bytes=1 << 28))
    write_bomb(tmp_path / "t.parquet", num_rows=100, text_bytes=1 << 23)
    with pytest.raises(DataError, match=r"t\.parquet: 64 rows after row 0 take more than 2 GiB"):
        read(local_file(tmp_path / "t.parquet", name="t.parquet"))
