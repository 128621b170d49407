"""Prompts, answers and texts come through the reader of sources: compressed, in other encodings, in any kind of table."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmtrain.cli.commands.generate import read_prompts
from lmtrain.data.named_files import read_text
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.evaluation.answers import Question, read_questions

ROWS = [{"prompt": "Größe, 1"}, {"prompt": 'say "two"\nlines'}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
CSV = 'prompt,other\n"Größe, 1",x\n"say ""two""\nlines",y\n'


def parquet(table: pa.Table) -> Callable[[Path], object]:
    return lambda path: pq.write_table(table, path)


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("p.jsonl", content(LINES.encode())),
        ("bom.jsonl", content(b"\xef\xbb\xbf" + LINES.encode())),
        ("utf16.jsonl", content(LINES.encode("utf-16"))),
        ("p.jsonl.gz", content(gzip.compress(LINES.encode()))),
        ("p.json.bz2", content(bz2.compress(LINES.encode()))),
        ("p.ndjson.xz", content(lzma.compress(LINES.encode()))),
        ("p.jsonl.zst", content(bytes(pa.compress(LINES.encode(), codec="zstd", asbytes=True)))),
        ("array.json", content(json.dumps(ROWS, indent=1).encode())),
        ("no_suffix", content(LINES.encode())),
        ("p.csv", content(CSV.encode())),
        ("p.parquet", parquet(pa.Table.from_pylist(ROWS))),
        ("large.parquet", parquet(pa.table({"prompt": pa.array([r["prompt"] for r in ROWS], pa.large_string())}))),
    ],
)
def test_prompts_are_the_same_in_every_form(name: str, write: Callable[[Path], object], tmp_path: Path) -> None:
    write(tmp_path / name)
    assert read_prompts(tmp_path / name) == [row["prompt"] for row in ROWS]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]},
        {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]},
        {"instruction": "1+1?", "input": "", "output": "2"},
        {"prompt": "1+1?", "completion": "2"},
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_answers_are_conversations_as_any_source_has_them(row: dict[str, object], name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist([row | {"kind": "sums"}]), path)
    else:
        path.write_text(json.dumps([row | {"kind": "sums"}]) if name == "a.json" else json.dumps(row | {"kind": "sums"}))
    assert read_questions(path) == [Question([{"role": "user", "content": "1+1?"}], "2", "sums")]


def test_a_text_is_whole_without_its_mark_and_a_table_s_texts_are_joined(tmp_path: Path) -> None:
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbfHello.\n")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"Hello.\n"))
    (tmp_path / "rows.jsonl").write_text('{"text": "One."}\n{"text": "Two."}\n')
    assert read_text(tmp_path / "bom.txt", flag="--text") == "Hello.\n"
    assert read_text(tmp_path / "a.txt.gz", flag="--text") == "Hello.\n"
    assert read_text(tmp_path / "rows.jsonl", flag="--text") == "One.\n\nTwo."


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("latin.txt", "Größe".encode("latin-1") * 3, "--text: .*latin.txt must be UTF-8 text, but it has 6 invalid"),
        ("empty.txt", b"", "--text: .*empty.txt is empty"),
        ("rows.jsonl", b'{"text": "One."}\nnot JSON\n', "--text: rows.jsonl:2 is not JSON"),
        ("cut.txt.gz", gzip.compress(b"Hello." * 99)[:-9], "cut.txt.gz is damaged"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(name: str, data: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=problem):
        read_text(tmp_path / name, flag="--text")
    with pytest.raises(ConfigurationError, match="--text: .* is not a file"):
        read_text(tmp_path / "absent", flag="--text")
