import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.data.manifest import Manifest, Shard, SplitManifest
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.data.shards import existing_folder, open_dataset
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
    assert split.document_ends().tolist() == [4, 6, 12, 14, 17]


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


@given(starts=st.lists(st.integers(0, 17 - 4), max_size=8))
def test_many_windows_are_the_same_as_one_at_a_time(tmp_path_factory, starts):
    folder = tmp_path_factory.getbasetemp() / "many"
    split = open_dataset(folder if folder.exists() else write_dataset(folder)).split("train")
    rows = split.windows(np.array(starts, dtype=np.int64), 4)
    assert rows.dtype == np.uint16
    assert rows.tolist() == [IDS[start : start + 4] for start in starts]


def test_a_window_past_the_end_is_a_defect_of_the_caller(folder):
    with pytest.raises(AssertionError):
        open_dataset(folder).split("train").window(15, 3)


def test_a_split_travels_to_another_process_without_its_maps(folder):
    split = open_dataset(folder).split("train")
    split.window(0, 17)
    assert len(pickle.dumps(split)) < 5000
    assert pickle.loads(pickle.dumps(split)).window(2, 3).tolist() == IDS[2:5]


def test_the_fingerprint_follows_the_tokens_not_the_place(folder, tmp_path):
    fingerprint = open_dataset(folder).manifest.fingerprint
    assert open_dataset(write_dataset(tmp_path / "elsewhere")).manifest.fingerprint == fingerprint
    assert open_dataset(write_dataset(tmp_path / "wide", dtype="uint32")).manifest.fingerprint != fingerprint


def test_an_existing_folder_is_given_back(folder):
    assert existing_folder(path=str(folder)) == folder


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist\. .* data=prepared"):
        open_dataset(tmp_path / "nowhere")


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no dataset\.json"):
        open_dataset(tmp_path)


def test_a_missing_shard_is_named(folder):
    (folder / "train_00001.ds").unlink()
    with pytest.raises(DataError, match=r"train_00001\.ds is missing, but dataset\.json lists it\. .*prepare it again"):
        open_dataset(folder)


def test_a_missing_index_is_named(folder):
    (folder / "train_00001.ds.index").unlink()
    with pytest.raises(DataError, match=r"train_00001\.ds\.index is missing"):
        open_dataset(folder)


def test_an_empty_shard_is_named(folder):
    (folder / "train_00000.ds").write_bytes(b"")
    with pytest.raises(DataError, match=r"train_00000\.ds is empty instead of 6 tokens"):
        open_dataset(folder)


def test_a_truncated_shard_is_named_with_both_sizes(folder):
    (folder / "train_00001.ds").write_bytes(b"\1\0" * 5)
    with pytest.raises(
        DataError, match=r"train_00001\.ds has 10 bytes instead of 12 \(6 tokens of uint16\): truncated"
    ):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float32"}, r"dtype 'float32'; this version reads uint16 and uint32"),
        ({"vocab_size": 70_000}, r"uint16 for 70,000 entries; it holds at most 65,536"),
    ],
)
def test_a_type_that_cannot_be_is_refused(folder, change, message):
    write_manifest(folder, replace(open_dataset(folder).manifest, **change))
    with pytest.raises(DataError, match=message):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not of the format lmtrain-shards-1"),
        ({"fingerprint": "0"}, "fingerprint does not belong"),
        ({"vocab_size": 301}, "fingerprint does not belong"),
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


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_manifest_that_is_no_manifest_is_refused(folder, text):
    (folder / "dataset.json").write_text(text)
    with pytest.raises(DataError, match=r"dataset\.json cannot be used"):
        open_dataset(folder)


def test_an_unknown_split_is_refused_by_name(folder):
    with pytest.raises(DataError, match=r"no split 'trian', only train\. Did you mean 'train'\?"):
        open_dataset(folder).split("trian")


def test_shards_of_another_tokenizer_are_refused(folder):
    dataset = open_dataset(folder)
    dataset.require_tokenizer("f" * 64)
    with pytest.raises(DataError, match=r"was encoded with tokenizer ffffffffffff, not with 000000000000"):
        dataset.require_tokenizer("0" * 64)


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
    rows = split.loss_mask_windows(np.array([0, 2, 5], np.int64), 4)
    assert rows.tolist() == [[True] * 4, [True, True, False, True], [True, True, False, True]]


@pytest.mark.parametrize(
    ("mask", "reaches"), [([0, 1, 1, 0, 1], 3), ([0, 0, 0, 0, 1], 5), ([1] * 5, 5), ([0] * 5, None), (None, 1)]
)
def test_the_first_words_with_loss_are_found(tmp_path, mask, reaches):
    writer = ShardWriter(tmp_path, split="train", dtype="uint16", shard_tokens=5)
    for marks in ([0] * 5, mask):
        writer.append(np.arange(5), np.array([5]), *([] if marks is None else [np.array(marks, np.uint8)]))
    splits = {"train": writer.close(text_bytes=10)}
    write_manifest(tmp_path, Manifest("m", "uint16", 300, "f" * 64, splits))
    assert open_dataset(tmp_path).split("train").first_learned == (None if reaches is None else 5 + reaches)


def test_a_missing_loss_mask_is_named(masked):
    (masked / "train_00001.ds.mask").unlink()
    with pytest.raises(DataError, match=r"train_00001\.ds\.mask is missing"):
        open_dataset(masked)


def test_shards_are_read_one_by_one(folder):
    split = open_dataset(folder).split("train")
    assert not split.has_loss_mask
    assert split.shard_starts.tolist() == [0, 6, 12, 17]
    assert split.shard_ids(2).tolist() == IDS[12:]
    assert split.shard_document_ends(2).tolist() == [2, 5]


OPEN = """
import json, resource, sys, time
import numpy as np
from lmtrain.data.shards import open_dataset
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.process_time()
split = open_dataset(sys.argv[1]).split("train")
starts = np.arange(64, dtype=np.int64) * (split.num_tokens // 65)
assert split.windows(starts, 1025).shape == (64, 1025)
seconds = time.process_time() - started
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"tokens": split.num_tokens, "seconds": seconds, "mb": grown / 1024}))
"""


def test_a_sparse_corpus_of_a_hundred_gigabytes_opens_at_once(tmp_path):
    shards = tuple(Shard(f"train_{n:05d}.ds", 100_000_000, 1, "s", "i") for n in range(500))
    for shard in shards:
        with (tmp_path / shard.file).open("wb") as file:
            file.truncate(200_000_000)
        (tmp_path / shard.index_file).write_bytes(np.array([100_000_000], "<u8").tobytes())
    split = SplitManifest(num_documents=500, num_tokens=50_000_000_000, text_bytes=1, shards=shards)
    write_manifest(tmp_path, Manifest("sparse", "uint16", 300, "f" * 64, {"train": split}))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", OPEN, str(tmp_path)]
    opened = json.loads(subprocess.run(arguments, capture_output=True, check=True, env=environment).stdout)
    assert opened["tokens"] == 50_000_000_000
    assert opened["mb"] < 100
    assert opened["seconds"] < 3, "of CPU time, whatever else runs here"
