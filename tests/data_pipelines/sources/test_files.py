import bz2
import gzip
import json
import lzma

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.files import Files
from lmtrain.errors import ConfigurationError, DataError

ROWS = [{"text": "one", "id": 1}, {"text": "two", "id": 2}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CSV = "id,text\n1,one\n2,two\n"


def zstd(content):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def parquet(rows):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


COMPRESSORS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}
CONTENTS = {
    "a.txt": b"one",
    "a.md": b"one",
    "a.py": b"one",
    "a.jsonl": LINES.encode(),
    "a.ndjson": LINES.encode(),
    "a.csv": CSV.encode(),
    "a.tsv": CSV.replace(",", "\t").encode(),
    "a.parquet": parquet(ROWS),
}


@pytest.fixture
def notes(tmp_path):
    (tmp_path / "a.md").write_text("# A\n")
    (tmp_path / "b.jsonl").write_text(LINES)
    (tmp_path / "c.py").write_bytes(b"\0\1\2")
    (tmp_path / "d.txt").write_text("")
    return tmp_path


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("name", CONTENTS)
def test_every_format_is_read_in_every_compression_here_and_elsewhere(name, suffix, tmp_path):
    content = COMPRESSORS[suffix](CONTENTS[name])
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / f"{name}{suffix}").write_bytes(content)
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pipe(f"/bucket/notes/{name}{suffix}", content)
    here = list(Files(paths=str(folder)).documents())
    assert [document.text for document in here] == (["one", "two"] if len(CONTENTS[name]) > 3 else ["one"])
    for address in ("memory://bucket/notes", f"memory://bucket/notes/{name}{suffix}", f"file://{folder}"):
        source = Files(paths=address)
        source.check()
        assert [document.text for document in source.documents()] == [document.text for document in here]
    assert list(Files(paths="memory://bucket/notes").documents()) == here


def test_files_and_rows_become_documents_in_order(notes):
    name = notes.name
    source = Files(paths=[str(notes)])
    assert list(source.documents()) == [
        Document(f"{name}/a.md", "# A\n"),
        Document(f"{name}/b.jsonl:1", "one"),
        Document(f"{name}/b.jsonl:2", "two"),
        Skipped(f"{name}/c.py", "not UTF-8 text"),
        Document(f"{name}/d.txt", ""),
    ]
    assert source.fraction_read == 1


def test_the_bytes_of_plain_files_are_known_and_those_of_compressed_ones_are_not(notes):
    assert Files(paths=[str(notes)]).text_bytes == sum(path.stat().st_size for path in notes.iterdir())
    (notes / "e.txt.gz").write_bytes(gzip.compress(b"more"))
    assert Files(paths=[str(notes)]).text_bytes is None


def test_the_pieces_are_the_files(notes):
    source = Files(paths=[str(notes)])
    assert source.num_pieces() == 4
    pieces = [document for index in range(4) for document in source.piece(index)]
    assert pieces == list(source.documents())


def test_the_fraction_read_grows_to_one(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.jsonl").write_text(LINES * 100)
    source = Files(paths=str(tmp_path))
    assert source.fraction_read is None
    fractions = [source.fraction_read or 0.0 for _ in source.documents()]
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] < 0.3
    assert source.fraction_read == 1


def test_one_path_needs_no_list(notes):
    assert [document.id for document in Files(paths=str(notes / "a.md")).documents()] == ["a.md"]


def test_more_suffixes_are_found_in_folders_and_others_are_told(notes, capsys):
    (notes / "e.log").write_text("log")
    (notes / "f.jpg").write_text("jpg")
    ids = [document.id for document in Files(paths=[str(notes)], more_suffixes=[".LOG"]).documents()]
    assert f"{notes.name}/e.log" in ids
    assert capsys.readouterr().err == "  files left out: 1 .jpg (source.more_suffixes takes more)\n"


def test_a_format_may_be_said_where_the_suffix_does_not_tell(tmp_path):
    (tmp_path / "dump").write_text(LINES)
    (tmp_path / "data.json").write_text(LINES)
    for name in ("dump", "data.json"):
        source = Files(paths=str(tmp_path / name), format="json_lines")
        assert [document.text for document in source.documents()] == ["one", "two"]


def test_json_could_be_either_and_has_to_be_told(tmp_path):
    (tmp_path / "data.json").write_text(LINES)
    with pytest.raises(
        ConfigurationError, match=r"data\.json: say source\.format=json_lines .* or source\.format=text"
    ):
        Files(paths=str(tmp_path / "data.json")).check()


def test_a_column_of_another_name(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES.replace("text", "body"))
    assert len(list(Files(paths=str(tmp_path), text_column="body").documents())) == 2


def test_conversations(tmp_path):
    chat = [{"role": "user", "content": "Hi"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"chat": chat}))
    (document,) = Files(paths=str(tmp_path), messages_column="chat").documents()
    assert (document.text, document.messages) == ("", tuple(chat))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet"])
def test_a_wrong_column_lists_the_right_ones_before_any_work(name, tmp_path):
    (tmp_path / name).write_bytes(CONTENTS[name])
    with pytest.raises(
        DataError, match=r"source\.text_column=txt is not a column of .*(text, id|id, text)\. Did you mean"
    ):
        Files(paths=str(tmp_path), text_column="txt").check()


@pytest.mark.parametrize("setting", ["text_column", "messages_column"])
def test_a_column_without_any_table_has_no_effect_and_is_refused(notes, setting):
    with pytest.raises(ConfigurationError, match=rf"source\.{setting}=body has no effect: .* names no table"):
        Files(paths=str(notes / "a.md"), **{setting: "body"}).check()


def test_a_damaged_file_is_refused_after_what_it_gave(tmp_path):
    content = gzip.compress(
        "".join(json.dumps({"text": f"text {n} {hash(n)}"}) + "\n" for n in range(200_000)).encode()
    )
    (tmp_path / "a.jsonl.gz").write_bytes(content[: len(content) // 2])
    documents = Files(paths=str(tmp_path)).documents()
    assert next(documents).text.startswith("text 0")
    with pytest.raises(DataError, match=r"a\.jsonl\.gz is damaged after [\d,]+ bytes of content.*Fetch it again"):
        list(documents)


def test_a_binary_file_that_was_named_is_refused(notes):
    with pytest.raises(DataError, match=r"c\.py is not UTF-8 text: it has NUL bytes"):
        list(Files(paths=[str(notes / "c.py")]).documents())


@pytest.mark.parametrize("name", ["d.txt", "e.jsonl", "f.csv"])
def test_an_empty_file_that_was_named_is_refused(notes, name):
    (notes / name).write_text("text\n" if name == "f.csv" else "")
    with pytest.raises(DataError, match=rf"source\.paths names .*{name}, which is empty"):
        list(Files(paths=[str(notes / name)]).documents())


def test_replaced_bytes_are_told_once(tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes(b"x" * 300 + b"\xff")
    assert len(list(Files(paths=str(tmp_path)).documents())) == 1
    told = capsys.readouterr().err
    assert told.startswith("  places that are not UTF-8 and became U+FFFD: 1, the first in ")
    assert told.endswith("a.txt\n")


def test_no_paths_are_refused():
    with pytest.raises(ConfigurationError, match=r"source\.paths=\[\] names no text"):
        Files(paths=[])


def test_a_missing_path_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        Files(paths=[str(tmp_path / "nowhere")]).fingerprint()


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


def test_a_wrong_path_for_validation_names_its_setting(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError, match=r"source\.validation_paths: .*missing does not exist"):
        list(Files(paths=[str(tmp_path)], validation_paths=[str(tmp_path / "missing")]).documents())


@pytest.mark.parametrize(
    ("name", "content", "form", "text"),
    [("a.txt", "text\tid\na, b\t1\n", "tsv", "a, b"), ("a.tsv", "text,id\na\tb,1\n", "csv", "a\tb")],
)
def test_the_format_separates_columns_whatever_the_suffix(tmp_path, name, content, form, text):
    (tmp_path / name).write_text(content)
    source = Files(paths=str(tmp_path / name), format=form)
    source.check()
    assert list(source.documents()) == [Document(f"{name}:2", text)]
