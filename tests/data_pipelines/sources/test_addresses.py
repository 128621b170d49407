import fsspec
import pytest

from data_pipelines.sources.addresses import find_remote, is_address, worded
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem


@pytest.fixture(autouse=True)
def bucket():
    store = fsspec.filesystem("memory")
    store.store.clear()
    for name in ("b.txt", "a.md", "deep/c.txt", ".hidden/d.txt"):
        store.pipe(f"/bucket/notes/{name}", name.encode())
    return store


def test_a_protocol_makes_an_address():
    assert is_address("s3://bucket/a")
    assert not is_address("my/notes")


def test_a_folder_gives_its_files_named_from_the_folder_on_without_hidden_ones():
    found = list(find_remote("memory://bucket/notes"))
    assert [file.name for file in found] == ["notes/a.md", "notes/b.txt", "notes/deep/c.txt"]
    assert all(file.is_searched_for and not file.is_local for file in found)
    assert found[1].num_bytes == 5


def test_one_file_is_one_that_was_named():
    (file,) = find_remote("memory://bucket/notes/b.txt")
    assert (file.name, file.is_named, file.address) == ("b.txt", True, "memory:///bucket/notes/b.txt")


def test_a_glob_takes_what_it_matches():
    found = find_remote("memory://bucket/notes/**/*.txt")
    assert [file.name for file in found] == [
        "bucket/notes/.hidden/d.txt",
        "bucket/notes/b.txt",
        "bucket/notes/deep/c.txt",
    ]


def test_a_file_that_is_written_again_is_another_one(bucket):
    (before,) = find_remote("memory://bucket/notes/b.txt")
    bucket.pipe("/bucket/notes/b.txt", b"B.txt")
    (after,) = find_remote("memory://bucket/notes/b.txt")
    assert before.changed != after.changed


def test_a_file_of_this_machine_goes_by_its_path(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (file,) = find_remote(f"file://{tmp_path}/a.txt")
    assert file.is_local
    assert file.address == str(tmp_path / "a.txt")


@pytest.mark.parametrize("named", ["memory://bucket/nowhere", "memory://bucket/*.csv"])
def test_what_is_not_there_is_refused(named):
    with pytest.raises(DataError, match="names no file there"):
        list(find_remote(named))


def test_an_unknown_protocol_is_refused_with_the_usual_ones():
    with pytest.raises(ConfigurationError, match=r"unknown protocol htps://; usual: s3, .* Did you mean 'https'\?"):
        list(find_remote("htps://example.org/a.txt"))


@pytest.mark.parametrize(
    ("problem", "kind", "message"),
    [
        (ImportError("Install s3fs to access S3"), EnvironmentProblem, "needs a package .*Install s3fs"),
        (RuntimeError("no\ncredentials"), EnvironmentProblem, "cannot be reached: RuntimeError: no credentials"),
        (FileNotFoundError("x"), DataError, "names no file there"),
        (DataError("ours"), DataError, "^ours$"),
    ],
)
def test_what_a_store_raises_is_one_line(problem, kind, message):
    with pytest.raises(kind, match=message), worded("s3://bucket/a"):
        raise problem


def test_a_web_server_that_is_not_reached_is_told_from_a_page_that_is_not_there():
    with pytest.raises(EnvironmentProblem, match="cannot be reached: no such host"), worded("https://example.org/a"):
        raise FileNotFoundError("https://example.org/a") from OSError("no such host")
