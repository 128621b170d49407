import ast

import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.python_stdlib import PythonStandardLibrary
from lmtrain.errors import DataError


@pytest.fixture(scope="module")
def documents():
    return list(PythonStandardLibrary().documents())


def test_it_is_about_twelve_megabytes_of_this_pythons_own_sources(documents):
    texts = {document.id: document.text for document in documents if isinstance(document, Document)}
    assert 8e6 < sum(len(text.encode()) for text in texts.values()) < 16e6
    assert PythonStandardLibrary().text_bytes == pytest.approx(
        sum(len(text.encode()) for text in texts.values()), rel=0.01
    )
    assert {"argparse.py", "json/decoder.py", "asyncio/base_events.py"} <= set(texts)
    assert ast.parse(texts["json/decoder.py"])


def test_tests_and_installed_packages_are_left_out(documents):
    folders = {folder for document in documents for folder in document.id.split("/")[:-1]}
    assert not folders & {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def test_paths_are_relative_and_sorted(documents):
    ids = [document.id for document in documents]
    assert ids == sorted(set(ids))
    assert not any(name.startswith("/") for name in ids)


def test_the_fingerprint_follows_the_content(tmp_path):
    (tmp_path / "a.py").write_text("a = 1\n")
    before = PythonStandardLibrary(folder=str(tmp_path)).fingerprint()
    assert PythonStandardLibrary(folder=str(tmp_path)).fingerprint() == before
    (tmp_path / "a.py").write_text("a = 2\n")
    assert PythonStandardLibrary(folder=str(tmp_path)).fingerprint() != before


def test_a_file_in_another_encoding_is_skipped_with_the_reason(tmp_path):
    (tmp_path / "latin.py").write_bytes("Größe = 'äöü'\n".encode("latin-1"))
    assert list(PythonStandardLibrary(folder=str(tmp_path)).documents()) == [Skipped("latin.py", "not UTF-8 text")]


def test_a_folder_without_python_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"source\.folder=.* has no \.py file"):
        PythonStandardLibrary(folder=str(tmp_path)).fingerprint()


def test_a_stray_byte_is_replaced_and_told_and_the_files_read_are_counted(tmp_path, capsys):
    (tmp_path / "a.py").write_bytes(b"x = 1\n" * 50 + b"# \xff\n")
    source = PythonStandardLibrary(folder=str(tmp_path))
    assert source.fraction_read == 0
    (document,) = source.documents()
    assert document.text.endswith("# \ufffd\n")
    assert source.fraction_read == 1
    assert "became U+FFFD: 1, the first in a.py" in capsys.readouterr().err
