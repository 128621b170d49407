import numpy as np
import pytest

from lmtrain.data.formats.llm_c import read
from lmtrain.errors import DataError


def write(path, *, magic=20240520, version=1, ids=(50256, 1, 2), dtype="<u2", num_ids=None, fourth=0):
    header = np.zeros(256, dtype="<i4")
    header[:4] = [magic, version, len(ids) if num_ids is None else num_ids, fourth]
    path.write_bytes(header.tobytes() + np.array(ids, dtype).tobytes())
    return path


@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ({}, "uint16"),
        ({"magic": 20240801, "version": 7, "ids": [128000, 5], "dtype": "<u4"}, "uint32"),
        ({"magic": 278895051, "fourth": 2}, "uint16"),
        ({"magic": 278895051, "fourth": 4, "ids": [163584], "dtype": "<u4"}, "uint32"),
    ],
)
def test_each_kind_of_header_is_read(tmp_path, how, dtype):
    file = read(write(tmp_path / "a.bin", **how), dtype=None, vocab_size=200_000)
    assert (file.dtype, file.offset_bytes) == (dtype, 1024)
    assert file.ids().tolist() == list(how.get("ids", (50256, 1, 2)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"magic": 7}, r"begins with 7, not with a magic number of llm\.c \(20240520, .*nanogpt has no header"),
        ({"version": 2}, r"is version 2 of magic 20240520; this reads version 1"),
        ({"magic": 278895051, "fourth": 8}, r"has ids of 8 bytes"),
        ({"num_ids": 4}, r"has 1,030 bytes, its header declares 4 ids: 1,032 bytes"),
        ({"num_ids": 2}, r"its header declares 2 ids: 1,028 bytes"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path, how, message):
    with pytest.raises(DataError, match=message):
        read(write(tmp_path / "a.bin", **how), dtype=None, vocab_size=200_000)


def test_a_file_shorter_than_a_header_is_refused(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\0" * 100)
    with pytest.raises(DataError, match="begins with 0"):
        read(tmp_path / "a.bin", dtype=None, vocab_size=300)


def test_another_type_than_the_header_tells_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"data\.folder\.dtype=uint32 differs from .*a\.bin: uint16"):
        read(write(tmp_path / "a.bin"), dtype="uint32", vocab_size=300)
