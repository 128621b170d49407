import numpy as np
import pytest

from lmtrain.data.formats.token_file import headerless, size_of
from lmtrain.errors import DataError


def test_ids_are_mapped_not_read(tmp_path):
    path = tmp_path / "ids"
    path.write_bytes(np.array([1, 2, 3], "<u2").tobytes())
    file = headerless(path, dtype="uint16", what="ids")
    assert file.ids().tolist() == [1, 2, 3]
    assert file.read_ends is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"123", r"has 3 bytes, no whole number of uint16 ids: not ids, or cut off"),
        (b"\x93NUMPY\1\0", r"saved by numpy, not ids: write its ids with tofile"),
    ],
)
def test_what_cannot_be_ids_is_refused(tmp_path, content, message):
    (tmp_path / "ids").write_bytes(content)
    with pytest.raises(DataError, match=message):
        headerless(tmp_path / "ids", dtype="uint16", what="ids")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist \(looked from"):
        size_of(tmp_path / "nowhere")
