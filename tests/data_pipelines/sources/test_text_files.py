import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.text_files import TextFiles
from lmtrain.errors import ConfigurationError, DataError


@pytest.fixture
def notes(tmp_path):
    (tmp_path / "a.md").write_text("# A\n")
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "c.py").write_bytes(b"\0\1\2")
    (tmp_path / "d.txt").write_text("")
    return tmp_path


def test_files_and_json_lines_become_documents_in_order(notes):
    name = notes.name
    assert list(TextFiles(paths=[str(notes)]).documents()) == [
        Document(f"{name}/a.md", "# A\n"),
        Document(f"{name}/b.jsonl:1", "one"),
        Document(f"{name}/b.jsonl:2", "two"),
        Skipped(f"{name}/c.py", "not UTF-8 text"),
        Document(f"{name}/d.txt", ""),
    ]


def test_one_path_needs_no_list(notes):
    assert [document.id for document in TextFiles(paths=str(notes / "a.md")).documents()] == ["a.md"]


def test_more_suffixes_are_found_in_folders(notes):
    (notes / "e.log").write_text("log")
    ids = [document.id for document in TextFiles(paths=[str(notes)], more_suffixes=[".LOG"]).documents()]
    assert f"{notes.name}/e.log" in ids


def test_a_binary_file_that_was_named_is_refused(notes):
    with pytest.raises(DataError, match=r"c\.py is not UTF-8 text: it has NUL bytes"):
        list(TextFiles(paths=[str(notes / "c.py")]).documents())


def test_an_empty_file_that_was_named_is_refused(notes):
    with pytest.raises(DataError, match=r"source\.paths names .*d\.txt, which is empty"):
        list(TextFiles(paths=[str(notes / "d.txt")]).documents())


def test_no_paths_are_refused():
    with pytest.raises(ConfigurationError, match=r"source\.paths=\[\] names no text"):
        TextFiles(paths=[])


def test_a_missing_path_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        TextFiles(paths=[str(tmp_path / "nowhere")]).fingerprint()


def test_the_fingerprint_follows_content_and_field(notes):
    before = TextFiles(paths=[str(notes)]).fingerprint()
    assert TextFiles(paths=[str(notes)]).fingerprint() == before
    assert TextFiles(paths=[str(notes)], text_field="body").fingerprint() != before
    (notes / "a.md").write_text("# B\n")
    assert TextFiles(paths=[str(notes)]).fingerprint() != before
