import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.interop.new_folder import make_folder
from lmtrain.storage.hashed_folder import damage


def test_a_folder_appears_with_a_manifest_of_its_files(tmp_path):
    make_folder(tmp_path / "out", facts={}, write=lambda folder: (folder / "a").write_text("x"))
    assert (tmp_path / "out" / "a").read_text() == "x"
    assert damage(tmp_path / "out") is None


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_whatever_ends_the_writing_leaves_nothing(failure, tmp_path):
    def write(folder):
        (folder / "half").write_text("x")
        raise failure

    with pytest.raises(failure):
        make_folder(tmp_path / "out", facts={}, write=write)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_one_clear_line(tmp_path):
    def write(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(EnvironmentProblem, match=r"out could not be written: .*No space left"):
        make_folder(tmp_path / "out", facts={}, write=write)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"OUT=.*out is there already"):
        make_folder(tmp_path / "out", facts={}, write=lambda folder: None)
