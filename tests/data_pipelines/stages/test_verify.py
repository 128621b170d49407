import hashlib
from dataclasses import replace

import numpy as np
import pytest

from data_pipelines.sources.base import Document
from data_pipelines.stages.encode import join_documents
from data_pipelines.stages.spool import Spool
from data_pipelines.stages.verify import problems, sample_problems
from lmtrain.data.manifest import Manifest
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.data.shards import open_dataset
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

TEXTS = [f"täxt number {number}" for number in range(9)]


def write(folder, *, texts=TEXTS, text_bytes=None, end_of_text_id=256):
    tokenizer = ByteLevelTokenizer()
    tokenizer.save(folder / "tokenizer")
    ids, ends = join_documents([tokenizer.encode(text) for text in texts], end_of_text_id=end_of_text_id)
    writer = ShardWriter(folder, split="train", dtype="uint16", shard_tokens=60)
    writer.append(ids, ends)
    num_bytes = sum(len(text.encode()) for text in texts) if text_bytes is None else text_bytes
    splits = {"train": writer.close(text_bytes=num_bytes)}
    fingerprint = tokenizer.fingerprint
    manifest = Manifest(name="x", dtype="uint16", vocab_size=257, tokenizer_fingerprint=fingerprint, splits=splits)
    write_manifest(folder, manifest)
    return folder


def found(folder):
    return list(problems(open_dataset(folder)))


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_whole_data_set_has_no_problem(tmp_path):
    assert found(write(tmp_path)) == []


@pytest.mark.parametrize("position", [0, 17, -2])
def test_a_flipped_bit_is_found(tmp_path, position):
    flip(write(tmp_path) / "train_00001.ds", position)
    assert "train_00001.ds has changed since it was written" in found(tmp_path)[0]


def test_a_flipped_bit_in_an_index_is_found(tmp_path):
    flip(write(tmp_path) / "train_00000.ds.index", 0)
    assert ["train_00000.ds.index has changed" in problem for problem in found(tmp_path)] == [True]


def test_another_tokenizer_is_found(tmp_path):
    write(tmp_path)
    ByteLevelTokenizer(vocab_size=258).save(tmp_path / "tokenizer")
    assert ["is not the tokenizer" in problem for problem in found(tmp_path)] == [True]


def test_ids_beyond_the_vocabulary_are_found(tmp_path):
    assert any(
        "holds id 300, the vocabulary has 257" in problem for problem in found(write(tmp_path, end_of_text_id=300))
    )


def test_documents_without_end_of_text_are_found(tmp_path):
    assert any("does not end with end-of-text" in problem for problem in found(write(tmp_path, end_of_text_id=7)))


def test_bytes_that_do_not_add_up_are_found(tmp_path):
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    (problem,) = found(write(tmp_path, text_bytes=num_bytes + 1))
    assert problem == f"the train split's ids stand for {num_bytes} bytes instead of the text's {num_bytes + 1}"


@pytest.mark.parametrize("ends", [[5, 5, 60], [5, 4, 60], [5, 9, 10]])
def test_an_index_that_cuts_wrongly_is_found(tmp_path, ends):
    write(tmp_path, texts=["x" * 19] * 3)
    content = np.array(ends, dtype="<u8").tobytes()
    (tmp_path / "train_00000.ds.index").write_bytes(content)
    manifest = open_dataset(tmp_path).manifest
    (shard,) = manifest.splits["train"].shards
    shard = replace(shard, index_sha256=hashlib.sha256(content).hexdigest())
    write_manifest(tmp_path, replace(manifest, splits={"train": replace(manifest.splits["train"], shards=(shard,))}))
    assert ["does not cut train_00000.ds into documents" in problem for problem in found(tmp_path)] == [True]


def spooled(folder, texts):
    folder.mkdir()
    spool = Spool(folder)
    for number, text in enumerate(texts):
        spool.append("train", Document(f"{number}", text))
    return spool.finish()["train"]


def test_sampled_documents_decode_to_their_text(tmp_path):
    dataset = open_dataset(write(tmp_path / "data"))
    assert list(sample_problems(dataset, "train", spooled(tmp_path / "spool", TEXTS))) == []


def test_a_document_that_decodes_to_another_text_is_found(tmp_path):
    dataset = open_dataset(write(tmp_path / "data"))
    (problem,) = sample_problems(dataset, "train", spooled(tmp_path / "spool", ["other", *TEXTS[1:]]))
    assert problem == "document 0 of the train split does not decode to its text"
