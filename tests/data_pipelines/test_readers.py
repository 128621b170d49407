"""One reader for every door: small inputs in the forms that people have them, and what is read from each."""

import bz2
import gzip
import io
import json
import lzma
import re
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.sources.base import Document
from data_pipelines.sources.files import Files
from data_pipelines.sources.hf_dataset import HuggingFaceDataset
from data_pipelines.sources.preference_pairs import PreferencePairs
from lmtrain.data import row_files, text_files
from lmtrain.data.text_files import FoundFile, PlainBytes, Reading, numbered_lines, read_text_parts
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.conversation import read_conversation
from tests.parquet_bombs import write_bomb

TEXTS = ["one", 'two "quoted" words', "drei: Ünïcode"]
USER, ANSWER = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}


def lines(*rows) -> bytes:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def parquet(rows, schema=None) -> bytes:
    buffer = io.BytesIO()
    table = pa.Table.from_pylist(rows, schema=schema) if isinstance(rows, list) else rows
    pq.write_table(table, buffer)
    return buffer.getvalue()


def zstd(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


PACKED = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}
ROWS = [{"text": text, "other": None} for text in TEXTS]
TABLES = {
    "rows.jsonl": lines(*ROWS),
    "rows.json": lines(*ROWS),
    "array.json": json.dumps(ROWS, indent=1).encode(),
    "short_array.json": json.dumps(ROWS).encode(),
    "bom.jsonl": b"\xef\xbb\xbf" + lines(*ROWS),
    "utf_16.jsonl": lines(*ROWS).decode().encode("utf-16"),
    "rows.csv": 'text,other\none,1\n"two ""quoted"" words",2\ndrei: Ünïcode,3\n'.encode(),
    "rows.tsv": 'text\tother\none\t1\ntwo "quoted" words\t2\ndrei: Ünïcode\t3\n'.encode(),
    "rows.parquet": parquet(ROWS),
    "large.parquet": parquet(ROWS, pa.schema([("text", pa.large_string()), ("other", pa.null())])),
    "dictionary.parquet": parquet(pa.table({"text": pa.array(TEXTS).dictionary_encode()})),
}


def read(source):
    """Return the texts or messages of a source, and the reasons of what was skipped."""
    source.check()
    items = list(source.documents())
    documents = [item.messages or item.text for item in items if isinstance(item, Document)]
    return documents, [item.reason for item in items if not isinstance(item, Document)]


@pytest.mark.parametrize(
    ("name", "suffix"), [(name, suffix) for name in TABLES for suffix in PACKED if not (suffix and "parquet" in name)]
)
def test_every_format_and_compression_gives_the_same_texts(tmp_path, name, suffix):
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(PACKED[suffix](TABLES[name]))
    for place in (str(path), f"file://{path}", str(tmp_path)):
        assert read(Files(paths=place)) == (TEXTS, [])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_not_text(tmp_path, encoding):
    (tmp_path / "book.txt").write_bytes("Ünïcode\n".encode(encoding))
    assert read(Files(paths=str(tmp_path / "book.txt"))) == (["Ünïcode\n"], [])


def share(*turns):
    return {"conversations": [{"from": role, "value": text} for role, text in turns]}


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "clock", "arguments": ""}}]}
CONVERSATIONS = {  # rows, and the roles and texts that are read
    "openai": ({"messages": [USER, ANSWER]}, [("user", "Q"), ("assistant", "A")]),
    "parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}, ANSWER]},
        [("user", "Q"), ("assistant", "A")],
    ),
    "json": ({"messages": json.dumps([USER, ANSWER])}, [("user", "Q"), ("assistant", "A")]),
    "developer": (
        {"messages": [{"role": "developer", "content": "S"}, USER, ANSWER]},
        [("system", "S"), ("user", "Q"), ("assistant", "A")],
    ),
    "empty system": (
        {"messages": [{"role": "system", "content": ""}, USER, ANSWER]},
        [("user", "Q"), ("assistant", "A")],
    ),
    "empty arguments": (
        {"messages": [USER, CALL, {"role": "tool", "content": "noon"}, ANSWER]},
        [("user", "Q"), ("assistant", ""), ("tool", "noon"), ("assistant", "A")],
    ),
    "function call": (
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "r"},
                ANSWER,
            ]
        },
        [("user", "Q"), ("assistant", ""), ("tool", "r"), ("assistant", "A")],
    ),
    "share gpt": (share(("human", "Q"), ("gpt", "A")), [("user", "Q"), ("assistant", "A")]),
    "bing": (share(("user", "Q"), ("bing", "A")), [("user", "Q"), ("assistant", "A")]),
    "share gpt tools": (
        share(("human", "Q"), ("function_call", '{"name": "f", "arguments": {}}'), ("observation", "r"), ("gpt", "A")),
        [("user", "Q"), ("assistant", ""), ("tool", "r"), ("assistant", "A")],
    ),
    "prompt": ({"prompt": "Q", "completion": "A"}, [("user", "Q"), ("assistant", "A")]),
    "prompt messages": ({"prompt": [USER], "completion": [ANSWER]}, [("user", "Q"), ("assistant", "A")]),
    "alpaca": ({"instruction": "Q", "input": "x", "output": "A"}, [("user", "Q\n\nx"), ("assistant", "A")]),
    "alpaca without input": ({"instruction": "Q", "input": "", "output": "A"}, [("user", "Q"), ("assistant", "A")]),
    "history": (
        {"instruction": "Q", "output": "A", "system": "S", "history": [["E", "F"]]},
        [("system", "S"), ("user", "E"), ("assistant", "F"), ("user", "Q"), ("assistant", "A")],
    ),
    "history as text": (
        {"instruction": "Q", "output": "A", "history": '[["E", "F"]]'},
        [("user", "E"), ("assistant", "F"), ("user", "Q"), ("assistant", "A")],
    ),
    "no history": ({"prompt": "Q", "completion": "A", "history": []}, [("user", "Q"), ("assistant", "A")]),
    "system column": (
        {"system": "S", "prompt": "Q", "response": "A"},
        [("system", "S"), ("user", "Q"), ("assistant", "A")],
    ),
}


@pytest.mark.parametrize("form", CONVERSATIONS)
def test_conversations_are_read_in_the_forms_that_people_have(tmp_path, form):
    row, expected = CONVERSATIONS[form]
    (tmp_path / "rows.jsonl").write_bytes(lines(row))
    ((messages,), skipped) = read(Files(paths=str(tmp_path / "rows.jsonl"), conversations=True))
    assert skipped == []
    assert [(turn.role, turn.text) for turn in read_conversation(messages)] == expected


def test_what_a_conversation_would_lose_is_counted_or_refused(tmp_path, capsys):
    rows = [
        {"messages": [USER, {**ANSWER, "reasoning_content": "R"}]},
        {"prompt": "Q", "completion": "A", "history": "none"},
        {"prompt": "Q", "completion": "A", "history": [USER, ANSWER]},
        {"prompt": [USER], "completion": "A", "history": [["E", "F"]]},
    ]
    (tmp_path / "rows.jsonl").write_bytes(lines(*rows))
    documents, reasons = read(Files(paths=str(tmp_path / "rows.jsonl"), conversations=True))
    assert len(documents) == 1
    assert all(reason.startswith("history") for reason in reasons)
    assert "ignored keys of messages: reasoning_content (1)" in capsys.readouterr().err


def test_columns_and_roles_of_other_names_are_mapped(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(lines({"chat": [{"role": "bot", "content": "A"}], "q": "Q", "a": "A"}))
    path = str(tmp_path / "rows.jsonl")
    assert read(Files(paths=path, columns={"prompt": "q", "completion": "a"}))[0] == [(USER, ANSWER)]
    assert read(Files(paths=path, messages_column="chat", roles={"bot": "assistant"}))[0] == [(ANSWER,)]
    with pytest.raises(ConfigurationError, match=r"source\.columns: .*completion.* got answer"):
        Files(paths=path, columns={"prompt": "q", "answer": "a"})
    with pytest.raises(ConfigurationError, match=r"source\.roles\.bot: .* got robot"):
        Files(paths=path, messages_column="chat", roles={"bot": "robot"})


def test_nulls_that_arrow_adds_are_left_out(tmp_path):
    def asked(name, **arguments):
        return [USER, {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}]

    rows = [{"messages": asked("clock", zone="UTC")}, {"messages": asked("weather", city="Ulm")}]
    (tmp_path / "rows.parquet").write_bytes(parquet(rows))
    expected = [tuple(row["messages"]) for row in rows]
    assert read(Files(paths=str(tmp_path / "rows.parquet"), messages_column="messages"))[0] == expected
    assert read(HuggingFaceDataset(name=str(tmp_path), messages_column="messages"))[0] == expected


PAIR = ({**USER}, {**ANSWER, "content": "good", "rejected": [{**ANSWER, "content": "bad"}]})
GOOD, BAD = [USER, {**ANSWER, "content": "good"}], [USER, {**ANSWER, "content": "bad"}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Q", "chosen": "good", "rejected": "bad"},
        {"prompt": [USER], "chosen": [GOOD[1]], "rejected": [BAD[1]]},
        {"prompt": "Q", "chosen": GOOD, "rejected": BAD},  # UltraFeedback
        {"chosen": GOOD, "rejected": BAD},  # implicit
        {"chosen": "Q good", "rejected": "Q bad"},
    ],
)
def test_pairs_are_read_in_the_forms_that_people_have(tmp_path, row):
    (tmp_path / "pairs.jsonl.gz").write_bytes(gzip.compress(lines(row)))
    assert read(PreferencePairs(paths=str(tmp_path / "pairs.jsonl.gz"))) == ([PAIR], [])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "Q", "chosen": "A"}, "no rejected"),
        ({"prompt": "Q", "chosen": "A", "rejected": "A"}, "chosen and rejected are equal"),
        ({"prompt": "Q", "chosen": [USER], "rejected": "A"}, "chosen is not the assistant's one answer"),
        ({"prompt": [ANSWER], "chosen": "A", "rejected": "B"}, "assistant turn before any user turn"),
        ({"prompt": "Q", "chosen": "", "rejected": "B"}, "no chosen"),
        (
            {"chosen": "\n\nHuman: Q\n\nAssistant: A", "rejected": "\n\nHuman: R\n\nAssistant: B"},
            "chosen is not the assistant's one answer",
        ),
        (
            {
                "chosen": "\n\nHuman: Q\n\nAssistant: A",
                "rejected": "\n\nHuman: Q\n\nAssistant: B\n\nHuman: R\n\nAssistant: C",
            },
            "rejected is not the assistant's one answer",
        ),
    ],
)
def test_bad_pairs_are_skipped_or_refused(tmp_path, row, reason):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(lines({"prompt": "Q", "chosen": "good", "rejected": "bad"}, row))
    ((pair,), (skipped,)) = read(PreferencePairs(paths=str(path)))
    assert pair == PAIR
    assert reason in skipped
    with pytest.raises(DataError, match=rf"pairs\.jsonl:2: .*{reason}"):
        read(PreferencePairs(paths=str(path), on_bad_row="error"))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", b'{"text": "one"}\n{not\n', "not JSON"),
        ("a.jsonl", b'{"text": "one"}\n[1]\n', "not a JSON object"),
        ("a.jsonl", b'{"text": "one"}\n{"text": 7}\n', "text is int instead of text"),
        ("a.jsonl", b'{"text": "one"}\n{"text": null}\n', "null text"),
        ("a.jsonl", b'{"text": "one"}\n{"x": "y"}\n', "no text in the row"),
        ("a.jsonl", b'{"text": "one"}\n\xff\xfe\xfa\xfb\n', "not UTF-8 text"),
        ("a.jsonl", b'{"text": "one"}\n' + b"[" * 100_000, "not JSON"),
        ("a.json", b'[{"text": "one"},\n 7]', "not a JSON object"),
        ("a.csv", b"text,b\none,1\ntwo\n", "more or fewer fields"),
        ("a.parquet", parquet([{"text": "one"}, {"text": None}]), "null text"),
    ],
)  # fmt: skip
def test_a_bad_row_is_skipped_with_the_reason_and_the_rest_is_read(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    texts, (skipped,) = read(Files(paths=str(tmp_path / name)))
    assert texts == ["one"]
    assert re.search(reason, skipped)
    with pytest.raises(DataError, match=r"source\.on_bad_row=skip"):
        read(Files(paths=str(tmp_path / name), on_bad_row="error"))


def test_tools_and_template_arguments_are_refused(tmp_path):
    rows = [{"messages": [USER, ANSWER], "tools": tools} for tools in (None, [], [{"name": "f"}])]
    (tmp_path / "a.parquet").write_bytes(parquet(rows))
    documents, (reason,) = read(Files(paths=str(tmp_path / "a.parquet"), messages_column="messages"))
    assert len(documents) == 2
    assert reason.startswith("tools")


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("a.csv", b"text,label,text\na,1,b\n", {}, r"several columns named text"),
        ("a.parquet", parquet(pa.table([["a"], ["b"]], names=["text", "text"])), {}, r"several columns named text"),
        ("a.csv", b"id;text\n0;one\n", {}, r"source\.delimiter=';'"),
        ("a.csv", b"text\none\rtwo\n", {}, r"a\.csv:2 is not a row.*a line end of CR alone"),
        ("a.csv", b'text\n"never closed\n', {}, r"a\.csv:2 is not a row.*source\.quoting=none"),
        ("a.jsonl", lines({"body": "x"}), {}, r"no column for text, only body.*source\.text_column"),
        ("a.jsonl", lines({"messages": []}), {}, r"source\.conversations=true"),
        ("a.jsonl", lines({"instruction": "", "output": ""}), {}, r"source\.conversations=true"),
        ("a.jsonl", lines({"text": "x"}), {"conversations": True}, r"no column for messages or completion and prompt"),
        ("a.jsonl", b"", {"conversations": True, "text_column": "x"}, r"source\.text_column: must be null .*columns="),
        ("a.txt", b"x", {"conversations": True}, r"no effect"),
        ("a.jsonl", lines({"body": "x"}), {"text_column": "boddy"}, r"source\.text_column=boddy.*Did you mean 'body'"),
        ("a.jsonl", b"{not\n", {}, r"a\.jsonl:1 is not JSON"),
        ("a.txt", b"x", {"text_column": "body"}, r"no effect"),
        ("a.txt", b"\0\1", {}, r"a\.txt is not UTF-8 text"),
        ("a.parquet", b"PAR1 nothing", {}, r"a\.parquet is damaged"),
        ("a.jsonl.gz", gzip.compress(lines(*ROWS), mtime=0)[:-9], {}, r"a\.jsonl\.gz is damaged after"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path, name, content, settings, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((ConfigurationError, DataError), match=message):
        read(Files(paths=str(tmp_path / name), **settings))


def test_a_delimiter_and_quotes_may_be_chosen(tmp_path):
    (tmp_path / "a.csv").write_text('id;text\n0;"one;two"\n')
    assert read(Files(paths=str(tmp_path / "a.csv"), delimiter=";"))[0] == ["one;two"]
    (tmp_path / "b.csv").write_text('text\n6" tall\n"5\n')
    assert read(Files(paths=str(tmp_path / "b.csv"), quoting="none"))[0] == ['6" tall', '"5']
    with pytest.raises(ConfigurationError, match=r"source\.delimiter: "):
        Files(paths=str(tmp_path / "a.csv"), delimiter=";;")


def test_a_folders_other_json_is_left_out(tmp_path):
    (tmp_path / "rows.json").write_bytes(lines(*ROWS))
    (tmp_path / "package.json").write_text('{"name": "x"}')
    assert read(Files(paths=str(tmp_path)))[0] == TEXTS


def found(path: Path) -> FoundFile:
    return FoundFile(name=path.name, address=str(path), num_bytes=path.stat().st_size, changed="")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_content_a_thousand_times_its_file_is_refused(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(text_files, "MOST_CONTENT_BYTES", 1 << 20)
    monkeypatch.setattr(text_files, "MOST_TIMES", 10)
    (tmp_path / f"a.jsonl{suffix}").write_bytes(PACKED[suffix](bytes(8 << 20)))
    with pytest.raises(DataError, match="unpack it yourself"):
        read(Files(paths=str(tmp_path / f"a.jsonl{suffix}")))


def test_an_xz_file_that_asks_for_a_dictionary_of_4_gib_is_refused(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    packed = bytearray(lzma.compress(b"x" * 100, filters=filters, check=lzma.CHECK_NONE))
    place = packed.index(bytes([lzma.FILTER_LZMA2, 1])) + 2
    packed[place] = 40  # 4 GiB - 1
    header = packed[12 : 12 + (packed[12] + 1) * 4 - 4]
    packed[12 + len(header) : 16 + len(header)] = zlib.crc32(header).to_bytes(4, "little")
    (tmp_path / "a.txt.xz").write_bytes(packed)
    with pytest.raises(DataError, match=r"a\.txt\.xz is damaged"):
        read(Files(paths=str(tmp_path / "a.txt.xz")))


def test_rows_beyond_memory_are_refused(tmp_path):
    write_bomb(tmp_path / "a.parquet", num_rows=64, text_bytes=1 << 26)
    with pytest.raises(DataError, match=r"a\.parquet(: 64 rows after row 0 take| holds) more than"):
        read(Files(paths=str(tmp_path / "a.parquet")))


class FewBytesAtATime(io.BytesIO):
    """A stream like a decompressor's."""

    def read(self, size: int | None = -1) -> bytes:
        size = -1 if size is None else size
        return super().read(min(size, 7) if size > 0 else size)


def plain(content: bytes) -> io.BufferedReader:
    return io.BufferedReader(PlainBytes(FewBytesAtATime(content), raw=io.BytesIO(), address="a"))


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"").rstrip(b"\r")), max_size=9))
def test_any_bytes_give_their_lines(lines_):
    content = b"\n".join(lines_)
    if content.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        return
    got = [line for _, line in numbered_lines(plain(content), max_bytes=20)]
    expected = content.split(b"\n")[: None if content.split(b"\n")[-1] else -1]
    assert got == [line.removesuffix(b"\r") if len(line) <= 20 else None for line in expected]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300))
def test_the_parts_of_a_long_text_are_all_of_it(tmp_path_factory, text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "MAX_WHOLE_BYTES", 40)
        patch.setattr(text_files, "PART_BYTES", 20)
        path = tmp_path_factory.mktemp("text") / "a.txt"
        path.write_bytes(text.encode())
        parts = [part for _, part in read_text_parts(found(path), Reading())]
        assert "".join(part or "" for part in parts) == text.removeprefix("\ufeff")


def test_memory_does_not_follow_the_size_of_an_array(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "MAX_ARRAY_BYTES", 100)
    (tmp_path / "a.json").write_text(json.dumps(ROWS * 9, indent=1))
    with pytest.raises(DataError, match="write it as JSON lines"):
        read(Files(paths=str(tmp_path / "a.json")))
