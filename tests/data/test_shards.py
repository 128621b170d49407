"""Shards are written and read as they are described."""

import hashlib
import json
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.data.manifest import Manifest, read_index
from lmtrain.data.packing_index import ends_of_shards
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.data.shards import open_dataset
from lmtrain.errors import DataError

DOCUMENTS = [[1, 2, 3, 0], [4, 0], [5, 6, 7, 8, 9, 0], [10, 0], [11, 12, 0]]
IDS = [token for document in DOCUMENTS for token in document]


def write_dataset(folder, *, dtype="uint16", vocab_size=300, shard_tokens=6):
    folder.mkdir(parents=True, exist_ok=True)
    writer = ShardWriter(folder, split="train", dtype=dtype, shard_tokens=shard_tokens)
    writer.append(np.array(IDS), np.cumsum([len(document) for document in DOCUMENTS]))
    splits = {"train": writer.close(text_bytes=99)}
    manifest = Manifest(name="tiny", dtype=dtype, vocab_size=vocab_size, tokenizer_fingerprint="f" * 64, splits=splits)
    write_manifest(folder, manifest)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_dataset(tmp_path / "tiny")


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_what_was_written_is_read(tmp_path, dtype):
    dataset = open_dataset(write_dataset(tmp_path / dtype, dtype=dtype))
    split = dataset.split("train")
    assert split.window(0, len(IDS)).tolist() == IDS
    assert split.window(0, 3).dtype == split.dtype == np.dtype(dtype)
    assert (split.num_tokens, split.num_documents, split.text_bytes) == (17, 5, 99)
    assert np.concatenate([*ends_of_shards(split)]).tolist() == [4, 6, 12, 14, 17]


def test_the_format_on_disk_is_flat_little_endian_ids_and_uint64_ends(folder):
    assert (folder / "train_00000.ds").read_bytes() == np.array(IDS[:6], dtype="<u2").tobytes()
    assert (folder / "train_00000.ds.index").read_bytes() == np.array([4, 6], dtype="<u8").tobytes()
    assert (folder / "train_00002.ds.index").read_bytes() == np.array([2, 5], dtype="<u8").tobytes()


@given(start=st.integers(0, 17), num_tokens=st.integers(0, 17))
def test_a_window_crosses_shards_unseen(tmp_path_factory, start, num_tokens):
    folder = tmp_path_factory.getbasetemp() / "crossing"
    split = open_dataset(folder if folder.exists() else write_dataset(folder)).split("train")
    num_tokens = min(num_tokens, 17 - start)
    assert split.window(start, num_tokens).tolist() == IDS[start : start + num_tokens]


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist\. .* data=prepared"):
        open_dataset(tmp_path / "nowhere")


def test_a_truncated_shard_is_named_with_both_sizes(folder):
    (folder / "train_00001.ds").write_bytes(b"\1\0" * 5)
    with pytest.raises(
        DataError, match=r"train_00001\.ds has 10 bytes instead of 12 \(6 tokens of uint16\): truncated"
    ):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not of the format lmtrain-shards-1"),
        ({"fingerprint": "0"}, "fingerprint"),
        ({"vocab_size": 301}, "fingerprint"),
        ({"dtype": "uint32"}, "fingerprint"),
        ({"tokenizer_fingerprint": "x"}, "fingerprint"),
        ({"splits": {}}, "fingerprint"),
        ({"splits": {"train": {}}}, "a key is missing or of the wrong type"),
        ({"splits": None}, "a key is missing or of the wrong type"),
        ({"surprise": 1}, "a key is missing or of the wrong type"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(folder, change, message):
    path = folder / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        open_dataset(folder)


@pytest.fixture
def masked(tmp_path):
    """Give two shards, the second with a loss mask."""
    writer = ShardWriter(tmp_path, split="train", dtype="uint16", shard_tokens=4)
    writer.append(np.arange(4), np.array([4]))
    writer.append(np.arange(4, 9), np.array([3, 5]), np.array([0, 1, 1, 0, 1], np.uint8))
    splits = {"train": writer.close(text_bytes=9)}
    write_manifest(tmp_path, Manifest("m", "uint16", 300, "f" * 64, splits))
    return tmp_path


def test_a_loss_mask_lies_beside_the_shard_that_needs_one(masked):
    assert {path.name for path in masked.glob("*.mask")} == {"train_00001.ds.mask"}
    split = open_dataset(masked).split("train")
    assert split.has_loss_mask
    assert split.shard_mask(0) is None
    assert np.array(split.shard_mask(1)).tolist() == [0, 1, 1, 0, 1]
    rows = [split.loss_mask(start, 4).tolist() for start in (0, 2, 5)]
    assert rows == [[True] * 4, [True, True, False, True], [True, True, False, True]]


documents_of_ids = st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=9), min_size=1, max_size=20)


def write(folder, documents, *, shard_tokens, chunk):
    folder.mkdir(exist_ok=True)
    writer = ShardWriter(folder, split="train", dtype="uint16", shard_tokens=shard_tokens)
    for start in range(0, len(documents), chunk):
        part = documents[start : start + chunk]
        writer.append(np.concatenate([np.array(ids) for ids in part]), np.cumsum([len(ids) for ids in part]))
    return writer.close(text_bytes=1)


@given(documents=documents_of_ids, shard_tokens=st.integers(1, 30), chunk=st.integers(1, 20))
def test_shards_do_not_depend_on_how_documents_arrive(tmp_path_factory, documents, shard_tokens, chunk):
    folder = tmp_path_factory.mktemp("shards")
    whole = write(folder / "whole", documents, shard_tokens=shard_tokens, chunk=len(documents))
    pieces = write(folder / "pieces", documents, shard_tokens=shard_tokens, chunk=chunk)
    assert whole == pieces
    assert whole.num_documents == len(documents)
    assert whole.num_tokens == sum(map(len, documents))
    for shard in whole.shards[:-1]:
        ends = read_index(folder / "whole", shard)
        assert shard.num_tokens >= shard_tokens > np.append(0, ends)[-2]
    for shard in whole.shards:
        content = (folder / "pieces" / shard.file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == shard.sha256
    manifest = Manifest(name="x", dtype="uint16", vocab_size=300, tokenizer_fingerprint="", splits={"train": whole})
    write_manifest(folder / "pieces", manifest)
    assert open_dataset(folder / "pieces").split("train").window(0, whole.num_tokens).tolist() == list(
        chain(*documents)
    )


def append(writer, documents):
    for ids in documents:
        writer.append(np.array(ids), np.array([len(ids)]))


def test_a_mask_that_comes_late_is_ones_before(tmp_path):
    writer = ShardWriter(tmp_path, split="train", dtype="uint16", shard_tokens=100)
    append(writer, [[1, 2], [3]])
    writer.append(np.array([4, 5]), np.array([2]), np.array([0, 1], np.uint8))
    append(writer, [[6]])
    (shard,) = writer.close(text_bytes=1).shards
    content = (tmp_path / shard.mask_file).read_bytes()
    assert list(content) == [1, 1, 1, 0, 1, 1]
    assert hashlib.sha256(content).hexdigest() == shard.mask_sha256
