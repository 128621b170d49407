"""Read a prepared data set again and hold it against its manifest and, while it is there, its text."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data_pipelines.stages.spool import Part
from lmtrain.data.manifest import Shard, SplitManifest
from lmtrain.data.shards import DTYPES, Dataset, Ids, index_of, read_index
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.loading import load_tokenizer

SAMPLED_PARTS = 64


def problems(dataset: Dataset) -> Iterator[str]:
    """Yield what is wrong with a data set: nothing when every byte is as it was written.

    Checks every sha256, that ids are below the vocabulary size, that documents end with end-of-text, and that the
    ids' bytes add up to the text's.
    """
    tokenizer = load_tokenizer(dataset.tokenizer_folder)
    if tokenizer.fingerprint != dataset.manifest.tokenizer_fingerprint:
        yield f"{dataset.tokenizer_folder} is not the tokenizer that the ids were made with"
        return
    for name, split in dataset.manifest.splits.items():
        yield from _split_problems(dataset, name, split, tokenizer)


def sample_problems(dataset: Dataset, split: str, parts: Sequence[Part]) -> Iterator[str]:
    """Yield the sampled documents, the first of up to 64 parts of a split, that do not decode to their text."""
    tokenizer = load_tokenizer(dataset.tokenizer_folder)
    tokens = dataset.split(split)
    starts = np.concatenate([[0], tokens.document_ends()])
    first_documents = np.cumsum([0, *(part.num_documents for part in parts)])
    stride = -(-len(parts) // SAMPLED_PARTS)
    for part, number in list(zip(parts, first_documents[:-1], strict=True))[::stride]:
        document = next(part.documents())
        ids = tokens.window(int(starts[number]), int(starts[number + 1] - starts[number]))
        if tokenizer.decode_bytes(ids.tolist()) != document.text.encode():
            yield f"document {document.id} of the {split} split does not decode to its text"


def _split_problems(dataset: Dataset, name: str, split: SplitManifest, tokenizer: Tokenizer) -> Iterator[str]:
    token_bytes = tokenizer.token_bytes()
    text_bytes = 0
    for shard in split.shards:
        path = dataset.folder / shard.file
        ids = np.fromfile(path, dtype=DTYPES[dataset.manifest.dtype])
        yield from _shard_problems(path, shard, ids, tokenizer)
        if int(ids.max()) >= tokenizer.vocab_size:
            return
        text_bytes += int(token_bytes[ids].sum(dtype=np.int64))
    if text_bytes != split.text_bytes:
        yield f"the {name} split's ids stand for {text_bytes:,} bytes instead of the text's {split.text_bytes:,}"


def _shard_problems(path: Path, shard: Shard, ids: Ids, tokenizer: Tokenizer) -> Iterator[str]:
    if _file_sha256(path) != shard.sha256:
        yield f"{path} has changed since it was written (sha256 differs)"
    if _file_sha256(index_of(path)) != shard.index_sha256:
        yield f"{index_of(path)} has changed since it was written (sha256 differs)"
        return
    if int(ids.max()) >= tokenizer.vocab_size:
        yield f"{path} holds id {int(ids.max())}, the vocabulary has {tokenizer.vocab_size} entries"
    ends = read_index(path)
    if ends[-1] != len(ids) or not (np.diff(ends, prepend=0) > 0).all():
        yield f"{index_of(path)} does not cut {path.name} into documents"
    elif not (ids[ends - 1] == tokenizer.end_of_text_id).all():
        yield f"{path} has a document that does not end with end-of-text"


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
