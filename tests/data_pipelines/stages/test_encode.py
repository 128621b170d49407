import numpy as np
import pytest

from data_pipelines.sources.base import Document
from data_pipelines.stages import spool as spool_module
from data_pipelines.stages.encode import encode_split, join_documents
from data_pipelines.stages.spool import Spool
from lmtrain.data.shards import TokenSplit
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

DOCUMENTS = [Document(f"{n}", f"Document {n} says: {'ja ' * (n % 5)}<|end_of_text|> ä\n") for n in range(100)]


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "PART_BYTES", 300)
    spool = Spool(tmp_path)
    for document in DOCUMENTS:
        spool.append("train", document)
    parts = spool.finish()["train"]
    assert len(parts) > 8
    return parts


def encode(parts, folder, *, tokenizer, num_processes, shard_tokens=200):
    tokenizer.save(folder / "tokenizer")
    told = []
    manifest = encode_split(
        parts,
        folder=folder,
        split="train",
        tokenizer_folder=folder / "tokenizer",
        dtype="uint16",
        shard_tokens=shard_tokens,
        num_processes=num_processes,
        advance=lambda part, tokens: told.append((part, tokens)),
    )
    assert [part for part, _ in told] == list(parts)
    assert sum(tokens for _, tokens in told) == manifest.num_tokens
    return manifest


def test_each_document_is_its_ids_and_end_of_text(parts, tmp_path):
    tokenizer = ByteLevelTokenizer()
    manifest = encode(parts, tmp_path, tokenizer=tokenizer, num_processes=0)
    tokens = TokenSplit(tmp_path, dtype="uint16", split=manifest)
    ids = tokens.window(0, tokens.num_tokens).tolist()
    assert ids == [id_ for document in DOCUMENTS for id_ in [*document.text.encode(), 256]]
    assert manifest.num_documents == len(DOCUMENTS)
    assert manifest.text_bytes == sum(len(document.text.encode()) for document in DOCUMENTS)
    assert len(manifest.shards) > 3


@pytest.mark.parametrize("num_processes", [1, 3])
def test_processes_write_the_same_bytes_as_threads(parts, tmp_path, num_processes):
    tokenizer = train_byte_pairs([document.text for document in DOCUMENTS], vocab_size=290)
    here = encode(parts, tmp_path / "here", tokenizer=tokenizer, num_processes=0)
    apart = encode(parts, tmp_path / "apart", tokenizer=tokenizer, num_processes=num_processes)
    assert here == apart
    for shard in here.shards:
        for name in (shard.file, f"{shard.file}.index"):
            assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "apart" / name).read_bytes()
    assert not list(parts[0].path.parent.glob("*.npy"))


def test_an_empty_text_is_an_end_of_text_alone():
    ids, ends = join_documents([[], [7, 8], []], end_of_text_id=9)
    assert ids.tolist() == [9, 7, 8, 9, 9]
    assert ends.tolist() == [1, 4, 5]
    assert (ids.dtype, ends.dtype) == (np.uint32, np.int64)
