"""Cleaned documents on their way to the shards: JSON lines in parts of about a megabyte, the unit of parallel work."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, final

from data_pipelines.sources.base import Document

PART_BYTES = 1_000_000


@dataclass(frozen=True)
class Part:
    """One file of documents of one split."""

    path: Path
    num_documents: int
    text_bytes: int

    def documents(self) -> Iterator[Document]:
        """Yield the documents in order."""
        with self.path.open(encoding="utf-8") as lines:
            for line in lines:
                document_id, text = json.loads(line)
                yield Document(document_id, text)


@final
class Spool:
    """Writes documents split by split into parts, and lists the parts."""

    def __init__(self, folder: Path) -> None:
        """Spool into a folder that exists."""
        self._folder = folder
        self._parts: defaultdict[str, list[Part]] = defaultdict(list)
        self._open: dict[str, _OpenPart] = {}

    def append(self, split: str, document: Document) -> int:
        """Add a document to a split and return its bytes of UTF-8."""
        part = self._open.get(split)
        if part is None:
            part = self._open[split] = _OpenPart(self._folder / f"{split}_{len(self._parts[split]):06d}.jsonl")
        num_bytes = part.append(document)
        if part.text_bytes >= PART_BYTES:
            self._close(split)
        return num_bytes

    def finish(self) -> dict[str, tuple[Part, ...]]:
        """Return each split's parts, once all documents are in."""
        for split in list(self._open):
            self._close(split)
        return {split: tuple(parts) for split, parts in self._parts.items()}

    def _close(self, split: str) -> None:
        self._parts[split].append(self._open.pop(split).close())


@final
class _OpenPart:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._num_documents = 0
        self.text_bytes = 0

    def append(self, document: Document) -> int:
        num_bytes = len(document.text.encode())
        self._file.write(json.dumps([document.id, document.text], ensure_ascii=False) + "\n")
        self._num_documents += 1
        self.text_bytes += num_bytes
        return num_bytes

    def close(self) -> Part:
        self._file.close()
        return Part(path=self._path, num_documents=self._num_documents, text_bytes=self.text_bytes)
