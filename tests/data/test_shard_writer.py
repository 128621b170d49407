import hashlib
from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.data.layout import read_index
from lmtrain.data.manifest import Manifest
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.data.shards import open_dataset

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


def test_a_manifest_is_the_same_bytes_twice(tmp_path):
    for name in ("a", "b"):
        split = write(tmp_path / name, [[1, 2]], shard_tokens=5, chunk=1)
        manifest = Manifest(
            name="x",
            dtype="uint16",
            vocab_size=300,
            tokenizer_fingerprint="",
            splits={"train": split},
            dropped={"empty": 1},
        )
        write_manifest(tmp_path / name, manifest)
    assert (tmp_path / "a" / "dataset.json").read_bytes() == (tmp_path / "b" / "dataset.json").read_bytes()
    assert open_dataset(tmp_path / "a").manifest == manifest


@given(documents=documents_of_ids, shard_tokens=st.integers(1, 30), data=st.data())
def test_a_writer_goes_on_behind_any_commit(tmp_path_factory, documents, shard_tokens, data):
    folder = tmp_path_factory.mktemp("commit")
    whole = write(folder / "whole", documents, shard_tokens=shard_tokens, chunk=len(documents))
    committed, lost = sorted(data.draw(st.lists(st.integers(0, len(documents)), min_size=2, max_size=2)))
    (folder / "again").mkdir()
    settings = {"split": "train", "dtype": "uint16", "shard_tokens": shard_tokens}
    first = ShardWriter(folder / "again", **settings)
    append(first, documents[:committed])
    written = first.commit()
    append(first, documents[committed:lost])
    first.abandon()
    assert written.num_tokens == sum(map(len, documents[:committed]))
    second = ShardWriter(folder / "again", **settings, written=written)
    assert second.num_tokens == written.num_tokens
    append(second, documents[committed:])
    assert second.close(text_bytes=1) == whole
    for shard in whole.shards:
        for name in (shard.file, shard.index_file):
            assert (folder / "again" / name).read_bytes() == (folder / "whole" / name).read_bytes()


def append(writer, documents):
    for ids in documents:
        writer.append(np.array(ids), np.array([len(ids)]))


def test_a_mask_that_comes_late_is_ones_before_and_goes_on_after_a_commit(tmp_path):
    settings = {"split": "train", "dtype": "uint16", "shard_tokens": 100}
    writer = ShardWriter(tmp_path, **settings)
    append(writer, [[1, 2], [3]])
    writer.append(np.array([4, 5]), np.array([2]), np.array([0, 1], np.uint8))
    written = writer.commit()
    append(writer, [[9, 9]])
    writer.abandon()
    again = ShardWriter(tmp_path, **settings, written=written)
    append(again, [[6]])
    (shard,) = again.close(text_bytes=1).shards
    content = (tmp_path / shard.mask_file).read_bytes()
    assert list(content) == [1, 1, 1, 0, 1, 1]
    assert hashlib.sha256(content).hexdigest() == shard.mask_sha256
