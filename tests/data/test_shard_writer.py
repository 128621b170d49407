import hashlib
from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.data.manifest import Manifest
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.data.shards import open_dataset, read_index

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
        ends = read_index(folder / "whole" / shard.file)
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
