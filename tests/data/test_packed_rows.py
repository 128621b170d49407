import numpy as np
import pytest

from lmtrain.data.packed_rows import BestFitRows, OneDocumentRows, RowBuilder
from lmtrain.data.rows import read_rows
from tests.data.documents import END_OF_TEXT, make_dataset

CONTEXT_TOKENS = 8


@pytest.fixture
def builder(tmp_path):
    """Rows of 8 tokens of documents 1 2 0, 4 5 6 7 0, 9 10 ... 17 0."""
    split = make_dataset(tmp_path, [3, 5, 10], shard_tokens=4).split("train")
    return RowBuilder(split, context_tokens=CONTEXT_TOKENS, end_of_text_id=END_OF_TEXT)


def build(builder, *pieces, num_pieces, document_mask=True):
    starts, lengths = np.array(pieces).T
    return builder.locate(starts, lengths, np.array(num_pieces), document_mask=document_mask).read(0, len(num_pieces))


def test_a_row_starts_with_end_of_text_and_is_padded_with_it(builder):
    rows = build(builder, (0, 3), (3, 5), (3, 5), (8, 8), num_pieces=[2, 1, 1])
    assert rows.ids.dtype == np.uint16
    assert rows.ids.tolist() == [
        [0, 1, 2, 0, 4, 5, 6, 7, 0],
        [0, 4, 5, 6, 7, 0, 0, 0, 0],
        [0, 9, 10, 11, 12, 13, 14, 15, 16],
    ]


def test_an_end_of_text_that_is_read_belongs_to_the_next_document(builder):
    rows = build(builder, (0, 3), (3, 5), (3, 5), (8, 8), num_pieces=[2, 1, 1])
    assert rows.documents.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1], [0] * 8]


def test_padding_carries_no_loss(builder):
    rows = build(builder, (0, 3), (3, 5), (3, 5), (8, 8), num_pieces=[2, 1, 1])
    assert rows.loss_mask.dtype == np.bool_
    assert rows.loss_mask.tolist() == [[True] * 8, [True] * 5 + [False] * 3, [True] * 8]


def test_documents_are_counted_only_where_asked(builder):
    assert build(builder, (0, 3), num_pieces=[1], document_mask=False).documents is None


def test_best_fit_rows_are_read_in_any_order(builder):
    rows = BestFitRows(
        builder,
        row_ends=np.array([2, 3, 4]),
        starts=np.array([0, 3, 8, 16]),
        lengths=np.array([3, 5, 8, 2], np.uint32),
        fingerprint="f",
        document_mask=False,
    )
    assert rows.num_rows == 3
    batch = read_rows(rows, np.array([2, 0]))
    assert batch.ids.tolist() == [[0, 17, 0, 0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 4, 5, 6, 7, 0]]
    assert batch.loss_mask is not None
    assert batch.loss_mask.sum(axis=1).tolist() == [2, 8]


def test_one_document_a_row_is_cut_at_the_context(builder):
    rows = OneDocumentRows(builder, document_ends=np.array([3, 8, 18]), context_tokens=CONTEXT_TOKENS, fingerprint="f")
    batch = read_rows(rows, np.array([2, 0]))
    assert batch.ids.tolist() == [[0, 9, 10, 11, 12, 13, 14, 15, 16], [0, 1, 2, 0, 0, 0, 0, 0, 0]]
    assert batch.loss_mask is not None
    assert batch.loss_mask.tolist() == [[True] * 8, [True] * 3 + [False] * 5]
    assert batch.documents is None


def test_marks_of_the_shards_are_read_beside_the_ids(tmp_path):
    from lmtrain.data.manifest import Shard, SplitManifest
    from lmtrain.data.shards import TokenSplit

    np.arange(1, 13, dtype="<u2").tofile(tmp_path / "train_00000.ds")
    np.array([5, 12], dtype="<u8").tofile(tmp_path / "train_00000.ds.index")
    np.array([0, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1], np.uint8).tofile(tmp_path / "train_00000.ds.mask")
    shard = Shard("train_00000.ds", 12, 2, "", "", mask_sha256="x")
    split = TokenSplit(tmp_path, dtype="uint16", split=SplitManifest(2, 12, 0, (shard,)))
    builder = RowBuilder(split, context_tokens=CONTEXT_TOKENS, end_of_text_id=END_OF_TEXT)
    rows = build(builder, (0, 5), (5, 3), (5, 7), num_pieces=[2, 1])
    assert rows.ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 6, 7, 8, 9, 10, 11, 12, 0]]
    assert rows.loss_mask is not None
    assert rows.loss_mask.astype(int).tolist() == [[0, 0, 1, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0, 1, 0]]
