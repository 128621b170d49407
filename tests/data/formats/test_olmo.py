import numpy as np
import pytest

from lmtrain.data.formats.olmo import read
from lmtrain.errors import DataError

# OLMo's tokenized files are np.memmap(path, mode="w+", dtype=...) under the suffix .npy, without numpy's header.


@pytest.mark.parametrize(("vocab_size", "dtype"), [(50280, "uint16"), (100_278, "uint32")])
def test_the_type_follows_the_vocabulary(tmp_path, vocab_size, dtype):
    path = tmp_path / "part-0.npy"
    written = np.memmap(path, dtype=dtype, mode="w+", shape=(3,))
    written[:] = [7, 8, vocab_size - 1]
    written.flush()
    file = read(path, dtype=None, vocab_size=vocab_size)
    assert file.dtype == dtype
    assert file.ids().tolist() == [7, 8, vocab_size - 1]


def test_an_array_with_numpys_header_is_refused(tmp_path):
    np.save(tmp_path / "saved.npy", np.arange(9, dtype=np.uint16))
    with pytest.raises(DataError, match=r"saved\.npy is an array saved by numpy"):
        read(tmp_path / "saved.npy", dtype=None, vocab_size=50280)
