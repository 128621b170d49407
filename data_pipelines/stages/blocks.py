"""Cleaned documents on their way to the shards: blocks of about four megabytes, the unit of parallel work.

A block is a run of documents of all splits in the source's order, and a build can stop behind any document.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from data_pipelines.sources.base import Document
from data_pipelines.stages.deduplicate import digest_of
from data_pipelines.stages.split import TRAIN
from data_pipelines.stages.stage import content_of

BLOCK_BYTES = 4_000_000


@dataclass(frozen=True)
class BlockFacts:
    """A block whose text or ids are on the disk: its number, its drops by place and reason, and its bytes."""

    number: int
    left_out: Mapping[int, Mapping[str, int]]
    num_documents: int
    text_bytes: int
    train_bytes: int


def cut_into_blocks(documents: Iterable[tuple[str, Document]]) -> Iterator[list[Document]]:
    """Yield the documents in blocks, each with its split."""
    block: list[Document] = []
    num_block_bytes = 0
    for split, document in documents:
        block.append(replace(document, split=split))
        num_block_bytes += len(document.text) if document.messages is None else len(json.dumps(document.messages))
        if num_block_bytes >= BLOCK_BYTES:
            yield block
            block, num_block_bytes = [], 0
    if block:
        yield block


def facts_of(block: Sequence[Document], number: int) -> BlockFacts:
    """Describe a block."""
    sizes = [num_bytes(content_of(document)) for document in block]
    train_bytes = sum(size for document, size in zip(block, sizes, strict=True) if document.split == TRAIN)
    left_out = {place: document.left_out for place, document in enumerate(block) if document.left_out}
    return BlockFacts(number, left_out, len(block), sum(sizes), train_bytes)


def sha256_of(block: Sequence[Document]) -> str:
    """Return the digest of a block's names, splits and contents, in hexadecimal."""
    names = json.dumps([[document.id, document.split] for document in block])
    return hashlib.sha256(names.encode() + b"".join(map(digest_of, block))).hexdigest()


def num_bytes(text: str) -> int:
    """Return how many bytes a text has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
