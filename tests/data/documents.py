"""Data sets of documents for tests: the ids of document d are distinct and end with end-of-text, 0."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from lmtrain.data.manifest import Manifest
from lmtrain.data.packing_index import ends_of_shards
from lmtrain.data.shard_writer import ShardWriter, write_manifest
from lmtrain.data.shards import Dataset, open_dataset

END_OF_TEXT = 0


def make_dataset(
    folder: Path,
    lengths: Sequence[int],
    *,
    shard_tokens: int = 1000,
    num_ids: int = 50_000,
    name: str = "made",
    tokenizer: str = "f" * 64,
) -> Dataset:
    """Write documents of these lengths (end-of-text included) whose other ids count up through the split, and again."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = 1 + np.arange(sum(lengths)) % (num_ids - 1)
    ends = np.cumsum(lengths)
    ids[ends - 1] = END_OF_TEXT
    splits = {}
    for split in ("train", "validation"):
        writer = ShardWriter(folder, split=split, dtype="uint16", shard_tokens=shard_tokens)
        writer.append(ids, ends)
        splits[split] = writer.close(text_bytes=len(ids))
    (folder / "tokenizer").mkdir(exist_ok=True)
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    write_manifest(
        folder, Manifest(name=name, dtype="uint16", vocab_size=50_000, tokenizer_fingerprint=tokenizer, splits=splits)
    )
    return open_dataset(folder)


def documents_of(dataset: Dataset) -> list[list[int]]:
    """Return the ids of each training document."""
    split = dataset.split("train")
    ids = split.window(0, split.num_tokens).tolist()
    ends = [0, *np.concatenate([*ends_of_shards(split)]).tolist()]
    return [ids[start:end] for start, end in pairwise(ends)]
