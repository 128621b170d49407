import struct

import numpy as np
import pytest

from lmtrain.data.formats.megatron import read
from lmtrain.errors import DataError

SEQUENCES = [[1, 2, 3], [4], [5, 6]]


def ends_of(file):
    assert file.read_ends is not None
    return file.read_ends()


def write(stem, *, code=8, version=1, magic=b"MMIDIDX\x00\x00", starts=(0, 1, 3), offsets=None):
    dtype = {8: "<u2", 4: "<i4", 5: "<i8"}[code]
    lengths = np.array([len(ids) for ids in SEQUENCES], "<i4")
    if offsets is None:
        offsets = (np.cumsum(lengths) - lengths) * np.dtype(dtype).itemsize
    stem.with_suffix(".bin").write_bytes(np.concatenate(SEQUENCES).astype(dtype).tobytes())
    header = magic + struct.pack("<Q", version) + struct.pack("<B", code)
    counts = struct.pack("<Q", len(lengths)) + struct.pack("<Q", len(starts))
    arrays = lengths.tobytes() + np.array(offsets, "<i8").tobytes() + np.array(starts, "<i8").tobytes()
    stem.with_suffix(".idx").write_bytes(header + counts + arrays)
    return stem


@pytest.mark.parametrize(("code", "dtype"), [(8, "uint16"), (4, "uint32")])
@pytest.mark.parametrize("suffix", ["", ".bin", ".idx"])
def test_a_pair_is_read_by_any_of_its_names(tmp_path, code, dtype, suffix):
    write(tmp_path / "text_document", code=code)
    file = read(tmp_path / f"text_document{suffix}", dtype=None, vocab_size=300)
    assert file.dtype == dtype
    assert file.ids().tolist() == [1, 2, 3, 4, 5, 6]
    assert ends_of(file).tolist() == [3, 6]  # the second document has two sequences


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"magic": b"TNTIDX\x00\x00\x00"}, r"does not begin with MMIDIDX"),
        ({"version": 2}, r"is version 2; this reads version 1"),
        ({"code": 5}, r"ids of type int64 \(code 5\); this reads uint16 and int32"),
        ({"offsets": [0, 0, 0]}, r"has sequences out of order"),
    ],
)
def test_another_index_is_refused(tmp_path, how, message):
    with pytest.raises(DataError, match=message):
        read(write(tmp_path / "x", **how), dtype=None, vocab_size=300)


def test_ids_and_index_that_do_not_belong_together_are_refused(tmp_path):
    stem = write(tmp_path / "x")
    stem.with_suffix(".bin").write_bytes(b"\0" * 10)
    with pytest.raises(DataError, match=r"x\.bin has 10 bytes, its index declares 6 ids of 2"):
        read(stem, dtype=None, vocab_size=300)
    stem.with_suffix(".idx").write_bytes(write(tmp_path / "y").with_suffix(".idx").read_bytes()[:-20])
    with pytest.raises(DataError, match=r"x\.idx has .* bytes, 3 sequences take .*: cut off"):
        read(stem, dtype=None, vocab_size=300)
    stem.with_suffix(".idx").unlink()
    with pytest.raises(DataError, match=r"x\.idx does not exist"):
        read(stem, dtype=None, vocab_size=300)
