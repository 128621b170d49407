import os

import pytest

from data_pipelines.sources.files import find_files, fingerprint_files, read_text, why_binary
from lmtrain.errors import DataError

SUFFIXES = frozenset({".txt", ".md"})


@pytest.fixture
def notes(tmp_path, monkeypatch):
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "b.txt").write_text("b")
    (folder / "a.MD").write_text("a")
    (folder / "deep" / "c.txt").write_text("c")
    (folder / "photo.jpg").write_bytes(b"\0")
    (folder / ".hidden" / "d.txt").write_text("d")
    (folder / ".e.txt").write_text("e")
    monkeypatch.chdir(tmp_path)
    return folder


def names(*paths):
    return [file.name for file in find_files(paths, suffixes=SUFFIXES)]


def test_a_folder_is_searched_for_text_sorted_and_without_hidden_files(notes):
    assert names("notes") == ["notes/a.MD", "notes/b.txt", "notes/deep/c.txt"]


def test_the_names_do_not_depend_on_how_the_folder_is_written(notes, monkeypatch):
    expected = names("notes")
    assert names("./notes/") == names(str(notes)) == names("notes/../notes") == expected
    monkeypatch.chdir(notes)
    assert names(".") == expected


def test_a_file_is_taken_whatever_its_suffix(notes):
    (file,) = find_files(["notes/photo.jpg"], suffixes=SUFFIXES)
    assert file.is_named
    assert file.name == "photo.jpg"


def test_a_glob_takes_what_it_matches(notes):
    assert names("notes/**/*.txt") == ["notes/b.txt", "notes/deep/c.txt"]
    assert names("notes/*.jpg") == ["notes/photo.jpg"]


def test_a_file_named_twice_is_taken_once(notes):
    assert names("notes", "notes/b.txt", "notes/*.txt") == ["notes/a.MD", "notes/b.txt", "notes/deep/c.txt"]


def test_a_home_folder_is_expanded(notes, monkeypatch):
    monkeypatch.setenv("HOME", str(notes.parent))
    assert names("~/notes/b.txt") == ["b.txt"]


def test_files_of_one_name_in_two_folders_are_both_there(notes, tmp_path):
    other = tmp_path / "other" / "notes"
    other.mkdir(parents=True)
    (other / "b.txt").write_text("another b")
    assert names("notes", "other/notes").count("notes/b.txt") == 2


def test_a_missing_path_is_refused_with_the_nearest_name(notes):
    with pytest.raises(DataError, match=r"source\.paths: note does not exist .*Did you mean 'notes'\?"):
        names("note")


def test_a_glob_without_a_match_is_refused(notes):
    with pytest.raises(DataError, match=r"source\.paths: notes/\*\.csv matches no file"):
        names("notes/*.csv")


def test_a_folder_without_text_says_what_it_holds(tmp_path):
    for name in ("a.pdf", "b.pdf", "c"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=r"holds no text file: 2 \.pdf, 1 without suffix\. .*source\.more_suffixes"):
        names(str(tmp_path))


def test_an_empty_folder_says_so(tmp_path):
    with pytest.raises(DataError, match="holds no text file: no file at all"):
        names(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"plain\n", "plain\n"),
        ("Grüße".encode(), "Grüße"),
        (b"\xef\xbb\xbfwith a mark", "with a mark"),
        (b"x" * 200 + b"\xff", "x" * 200 + "\ufffd"),
        (b"", ""),
        (("\ufffd" * 50).encode(), "\ufffd" * 50),
    ],
)
def test_text_is_read_with_stray_bytes_replaced(tmp_path, content, text):
    (tmp_path / "file").write_bytes(content)
    assert read_text(tmp_path / "file") == text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"ab\0c", "NUL bytes"),
        ("UTF-16".encode("utf-16"), "NUL bytes"),
        (bytes(range(128, 256)), "invalid sequences in 128 bytes"),
        ("Größe ".encode("latin-1") * 9, "invalid sequences in 54 bytes"),
    ],
)
def test_binary_files_are_refused_with_the_reason(tmp_path, content, reason):
    (tmp_path / "file.txt").write_bytes(content)
    with pytest.raises(
        DataError, match=rf"file\.txt is not UTF-8 text: it has .*{reason}.*Convert it, or leave it out"
    ):
        read_text(tmp_path / "file.txt")


def test_text_has_no_reason_to_be_binary():
    assert why_binary("plain \ufffd text".encode()) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_without_permission_is_refused(tmp_path):
    (tmp_path / "secret.txt").write_text("x")
    (tmp_path / "secret.txt").chmod(0)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        read_text(tmp_path / "secret.txt")


def test_the_fingerprint_follows_names_and_contents_not_times(notes):
    def fingerprint():
        return fingerprint_files(find_files(["notes"], suffixes=SUFFIXES))

    before = fingerprint()
    os.utime(notes / "b.txt", (1, 1))
    assert fingerprint() == before
    (notes / "b.txt").write_text("B")
    changed = fingerprint()
    assert changed != before
    (notes / "b.txt").rename(notes / "z.txt")
    assert fingerprint() not in {before, changed}


def test_beyond_256_mb_the_fingerprint_follows_sizes_and_times(notes, monkeypatch):
    monkeypatch.setattr("data_pipelines.sources.files.HASHED_WHOLE_BYTES", 2)
    files = find_files(["notes"], suffixes=SUFFIXES)
    before = fingerprint_files(files)
    assert fingerprint_files(files) == before
    os.utime(notes / "b.txt", (1, 1))
    assert fingerprint_files(files) != before
