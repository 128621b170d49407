import numpy as np
import pytest

from lmtrain.data.rows import RowBatch
from lmtrain.evaluation.document_losses import document_pieces

END = 0


def test_rows_are_cut_at_each_end_of_text_and_unlearned_tokens_do_not_count() -> None:
    ids = np.array([[5, 6, END, 7, 8], [END, 1, 2, 3, 4]], np.uint16)
    learned = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.bool_)
    nats = np.array([[1.0, 2.0, 4.0, 9.0], [1.0, 1.0, 3.0, 1.0]])
    pieces = document_pieces(RowBatch(ids, loss_mask=learned), end_of_text_id=END, nats=nats)
    assert [(one.row, one.start, one.ids.tolist()) for one in pieces] == [
        (0, 0, [6, END]),
        (0, 2, [7, 8]),  # end-of-text, an input, begins its next document
        (1, 0, [1, 2, 3, 4]),
    ]
    assert [one.mean_nats for one in pieces] == [1.5, pytest.approx(4.0), 1.5]
    assert [one.worst for one in pieces] == [1, 0, 2]


def test_the_packings_own_documents_are_taken_where_it_counts_them() -> None:
    rows = RowBatch(np.array([[5, 6, 7, 8]], np.uint16), documents=np.array([[0, 1, 1]], np.int32))
    pieces = document_pieces(rows, end_of_text_id=END, nats=None)
    assert [one.ids.tolist() for one in pieces] == [[6], [7, 8]]
    assert pieces[0].mean_nats is None
