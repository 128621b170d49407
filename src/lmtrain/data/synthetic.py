"""Synthetic data with a known best loss, in the native format, for tests and benchmarks."""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.dataset_folder import build_folder
from lmtrain.data.manifest import DatasetFolder, SplitManifest, narrowest_dtype
from lmtrain.data.shard_writer import ShardWriter, finish_folder
from lmtrain.data.shards import open_dataset
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

DOCUMENT_TOKENS = 512
NUM_SUCCESSORS = 4
HELD_OUT_FRACTION = 0.05
_SHARD_TOKENS = 1 << 27


def synthetic(
    *, root: str = "data", vocab_size: int = 512, num_tokens: int = 1_000_000, seed: int = 0
) -> DatasetFolder:
    """Make documents in which each id has four equally likely successors, so that the best loss is ln 4 nats.

    Documents have 512 tokens; `num_tokens` is rounded up to whole ones, and 5 % more make a validation and a test
    split each. The same settings find the folder again.
    """
    tokenizer = ByteLevelTokenizer(vocab_size=vocab_size)
    settings = {"vocab_size": vocab_size, "num_tokens": num_tokens, "seed": seed}
    final = Path(root) / f"synthetic-{hashlib.sha256(repr(settings).encode()).hexdigest()[:12]}"

    def build(folder: Path) -> None:
        random = np.random.default_rng(seed)
        successors = random.integers(vocab_size, size=(vocab_size, NUM_SUCCESSORS))
        held_out_tokens = int(num_tokens * HELD_OUT_FRACTION)
        wanted = {"train": num_tokens, "validation": held_out_tokens, "test": held_out_tokens}
        splits = {
            name: _write_split(folder, name, successors, tokenizer, max(1, -(-tokens // DOCUMENT_TOKENS)), random)
            for name, tokens in wanted.items()
        }
        dtype = narrowest_dtype(vocab_size)
        finish_folder(folder, name="synthetic", tokenizer=tokenizer, splits=splits, dtype=dtype, **settings)

    build_folder(final, build)
    return DatasetFolder(open_dataset(final).folder)


def _write_split(
    folder: Path,
    name: str,
    successors: NDArray[np.int64],
    tokenizer: ByteLevelTokenizer,
    num_documents: int,
    random: np.random.Generator,
) -> SplitManifest:
    dtype = narrowest_dtype(tokenizer.vocab_size)
    writer = ShardWriter(folder, split=name, dtype=dtype, shard_tokens=_SHARD_TOKENS)
    token_bytes, text_bytes = tokenizer.token_bytes(), 0
    documents_at_once = _SHARD_TOKENS // DOCUMENT_TOKENS
    for start in range(0, num_documents, documents_at_once):
        ids = _walk(successors, min(documents_at_once, num_documents - start), random)
        ids[:, -1] = tokenizer.end_of_text_id
        text_bytes += int(token_bytes[ids].sum())
        writer.append(ids.reshape(-1), np.arange(1, len(ids) + 1) * DOCUMENT_TOKENS)
    return writer.close(text_bytes=text_bytes)


def _walk(successors: NDArray[np.int64], num_documents: int, random: np.random.Generator) -> NDArray[np.int64]:
    ids = np.empty((num_documents, DOCUMENT_TOKENS), dtype=np.int64)
    ids[:, 0] = random.integers(len(successors), size=num_documents)
    for position in range(1, DOCUMENT_TOKENS):
        choices = random.integers(NUM_SUCCESSORS, size=num_documents)
        ids[:, position] = successors[ids[:, position - 1], choices]
    return ids
