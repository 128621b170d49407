import os

import numpy as np
import pytest

from lmtrain.data.mapped_file import MappedFile
from lmtrain.errors import DataError

U2 = np.dtype("<u2")


@pytest.fixture
def path(tmp_path):
    np.arange(6000, dtype=U2).tofile(tmp_path / "a.ds")
    return tmp_path / "a.ds"


def test_items_are_those_of_the_file_from_an_offset_on_and_cannot_be_written(path):
    items = MappedFile(path, U2, num_items=5000, offset_bytes=100).items
    assert items.tolist() == list(range(50, 5050))
    assert not items.flags.writeable


@pytest.mark.parametrize("num_bytes", [11_998, 0])
def test_a_file_that_was_cut_off_is_told_before_it_is_touched(path, num_bytes):
    mapped = MappedFile(path, U2, num_items=6000)
    mapped.require_whole()
    os.truncate(path, num_bytes)
    with pytest.raises(DataError, match=f"a.ds was cut off while it was read: it has {num_bytes:,} bytes"):
        mapped.require_whole()


@pytest.mark.faults
def test_a_file_that_is_too_short_or_gone_is_refused(path):
    with pytest.raises(DataError, match="cannot be read"):
        MappedFile(path, U2, num_items=6001)
    with pytest.raises(DataError, match="No such file"):
        MappedFile(path.with_name("b.ds"), U2, num_items=1)
