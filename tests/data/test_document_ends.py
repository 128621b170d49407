import numpy as np
import pytest

from lmtrain.data.document_ends import document_ends, ends_of_shards, map_file, write_document_ends
from tests.data.documents import make_dataset

LENGTHS = [3, 1, 7, 2, 2, 9]


@pytest.mark.parametrize("shard_tokens", [1, 8, 1000])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_ends_are_counted_over_all_shards(tmp_path, shard_tokens, split):
    dataset = make_dataset(tmp_path, LENGTHS, shard_tokens=shard_tokens)
    for ends in (document_ends(dataset, split), document_ends(dataset, split)):
        assert ends.dtype == np.int64
        assert ends.tolist() == np.cumsum(LENGTHS).tolist()
    assert np.concatenate(list(ends_of_shards(dataset.split(split)))).tolist() == np.cumsum(LENGTHS).tolist()


def test_one_shard_needs_no_file_of_its_own(tmp_path):
    document_ends(make_dataset(tmp_path, LENGTHS))
    assert not (tmp_path / "packing").exists()


def test_a_file_is_mapped_as_written(tmp_path):
    dataset = make_dataset(tmp_path, LENGTHS, shard_tokens=5)
    write_document_ends(dataset.split("train"), tmp_path / "ends")
    assert map_file(tmp_path / "ends", np.dtype("<i8")).tolist() == np.cumsum(LENGTHS).tolist()
    (tmp_path / "none").touch()
    assert map_file(tmp_path / "none", np.dtype("<i8")).tolist() == []
