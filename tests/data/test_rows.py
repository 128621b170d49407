import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtrain.data.rows import PieceReader, document_spans
from tests.data.documents import make_dataset


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    pieces=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12)), min_size=1, max_size=6),
    shard_tokens=st.sampled_from([1, 5, 1000]),
)
def test_pieces_are_copied_to_their_places_across_shards(tmp_path_factory, lengths, pieces, shard_tokens):
    split = make_dataset(tmp_path_factory.mktemp("d"), lengths, shard_tokens=shard_tokens).split("train")
    starts = np.array([int(share * (split.num_tokens - 1)) for share, _ in pieces])
    wanted = np.array(
        [min(length, split.num_tokens - start) for (_, length), start in zip(pieces, starts, strict=True)]
    )
    places = np.cumsum(wanted) - wanted
    ids = np.full((1, int(wanted.sum()) + 1), 65535, np.uint16)
    reader = PieceReader(split)
    reader.read_ids(reader.blocks(reader.locate(starts, wanted, places)), 0, ids)
    expected = [split.window(int(start), int(length)) for start, length in zip(starts, wanted, strict=True)]
    assert ids[0, :-1].tolist() == np.concatenate(expected).tolist()
    assert ids[0, -1] == 65535, "nothing is written elsewhere"


def test_a_reader_travels_to_another_process_without_its_maps(tmp_path):
    reader = PieceReader(make_dataset(tmp_path, [4] * 400, shard_tokens=100).split("train"))
    pieces = reader.locate(np.array([90, 300]), np.array([200, 9]), np.array([0, 200]))
    assert len(pieces.shards) == 4, "cut where shards meet"
    found = np.zeros((2, 209), np.uint16)
    reader.read_ids(reader.blocks(pieces), 0, found[0])
    assert len(pickle.dumps(reader)) < 20_000
    other = pickle.loads(pickle.dumps(reader))
    other.read_ids(other.blocks(pieces), 0, found[1])
    assert (found[0] == found[1]).all()


@given(st.lists(st.sets(st.integers(1, 9)), min_size=1, max_size=5))
def test_documents_are_counted_from_each_boundary_on(boundaries):
    columns = np.array([column for row in boundaries for column in sorted(row)], dtype=np.int64)
    rows = np.array([number for number, row in enumerate(boundaries) for _ in row], dtype=np.int64)
    documents = document_spans(columns, rows, (len(boundaries), 10)).read(0, len(boundaries))
    assert documents.dtype == np.int32
    assert documents.tolist() == [[sum(b <= column for b in row) for column in range(10)] for row in boundaries]
