import numpy as np
import pytest
from numpy.typing import NDArray

from lmtrain.data.known_ids import with_known_ids
from lmtrain.data.manifest import Manifest
from lmtrain.data.rows import RowBatch, read_rows
from lmtrain.errors import DataError


class Counted:
    """Rows of one id each, their own number."""

    num_rows = 10
    fingerprint = "f"

    def locate(self, rows: NDArray[np.int64]) -> "Counted":
        self.rows = rows
        return self

    def read(self, first: int, last: int) -> RowBatch:
        return RowBatch(self.rows[first:last, None].astype(np.uint16))


def manifest(vocab_size: int) -> Manifest:
    return Manifest(name="t", dtype="uint16", vocab_size=vocab_size, tokenizer_fingerprint="f", splits={})


def test_an_id_beyond_the_vocabulary_is_an_error_of_the_data() -> None:
    rows = with_known_ids(Counted(), manifest(8))
    assert (rows.num_rows, rows.fingerprint) == (10, "f")
    assert read_rows(rows, np.array([3, 7])).ids.tolist() == [[3], [7]]
    with pytest.raises(DataError, match=r"holds id 8, but its vocabulary has 8 entries"):
        read_rows(rows, np.array([3, 8]))


def test_a_type_that_holds_no_other_id_is_not_looked_at() -> None:
    rows = Counted()
    assert with_known_ids(rows, manifest(1 << 16)) is rows
