"""Cleaned documents on their way to the shards: blocks of about four megabytes, the unit of parallel work.

A block is a run of documents of all splits in the source's order, and a build can stop behind any document.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from data_pipelines.sources.base import Document
from data_pipelines.stages.deduplicate import digest_of
from data_pipelines.stages.split import SPLITS
from lmtrain.storage import foreign_json

BLOCK_BYTES = 4_000_000
LeftOut = Mapping[int, Mapping[str, int]]  # by reason, before the document at a place in its block


@dataclass(frozen=True)
class Block:
    """Some documents in order, each with its split; `left_out` counts the omissions before a document, by its place."""

    number: int
    splits: tuple[str, ...]
    documents: tuple[Document, ...]
    left_out: LeftOut

    @cached_property
    def sha256(self) -> str:
        """Return the digest of names, splits and of the digests of all contents, in hexadecimal."""
        ids = json.dumps([document.id for document in self.documents])
        digest = hashlib.sha256(f"{ids} {' '.join(self.splits)} ".encode())
        digest.update(b"".join(map(digest_of, self.documents)))
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the block for another process, or for later."""
        contents = [_content_of(document) for document in self.documents]
        with path.open("wb") as file:
            file.write(_header(self.splits, self.documents, list(map(len, contents))) + b"\n")
            file.writelines(contents)


def load_block(path: Path, *, number: int = 0, left_out: LeftOut | None = None) -> Block:
    """Read a saved block."""
    with path.open("rb") as file:
        header: dict[str, Any] = foreign_json.parse(file.readline())
        content = file.read()
    splits = tuple(SPLITS[split] for split in header["splits"])
    return Block(number, splits, tuple(_documents(header, content)), left_out or {})


def cut_into_blocks(documents: Iterable[tuple[str, Document]]) -> Iterator[Block]:
    """Yield the documents in blocks."""
    block: list[tuple[str, Document]] = []
    num_block_bytes = number = 0
    for split, document in documents:
        block.append((split, document))
        num_block_bytes += len(document.text) if document.messages is None else len(_content_of(document))
        if num_block_bytes >= BLOCK_BYTES:
            yield _block(number, block)
            block, num_block_bytes, number = [], 0, number + 1
    if block:
        yield _block(number, block)


def num_bytes(text: str) -> int:
    """Return how many bytes a text has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _block(number: int, block: list[tuple[str, Document]]) -> Block:
    splits, documents = zip(*block, strict=True)
    left_out = {place: document.left_out for place, document in enumerate(documents) if document.left_out}
    return Block(number, splits, documents, left_out)


def _content_of(document: Document) -> bytes:
    if document.messages is None:
        return document.text.encode()
    return json.dumps([dict(message) for message in document.messages], ensure_ascii=False).encode()


def _header(splits: tuple[str, ...], documents: tuple[Document, ...], sizes: list[int]) -> bytes:
    content = {
        "splits": [SPLITS.index(split) for split in splits],
        "ids": [document.id for document in documents],
        "num_bytes": sizes,
        "chats": [number for number, document in enumerate(documents) if document.messages is not None],
    }
    return json.dumps(content).encode()


def _documents(header: Mapping[str, Any], content: bytes) -> Iterator[Document]:
    chats = frozenset(header["chats"])
    start = 0
    for number, (document_id, size) in enumerate(zip(header["ids"], header["num_bytes"], strict=True)):
        text = content[start : start + size].decode()
        start += size
        if number in chats:
            yield Document(document_id, "", messages=tuple(foreign_json.parse(text)))
        else:
            yield Document(document_id, text)
