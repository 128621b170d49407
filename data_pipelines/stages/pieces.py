"""A corpus on disk between stages: numbered files of JSON lines, documents and drops, each in its place."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.stage import Item, Stage
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import open_durably


@final
@dataclass(frozen=True)
class PieceFolder:
    """A number of pieces in a folder."""

    folder: Path
    count: int

    def items(self, piece: int) -> Iterator[Item]:
        """Yield a piece's items in order."""
        return read_items(self.folder / f"{piece:06d}.jsonl")

    def write(self, piece: int, items: Iterable[Item]) -> None:
        """Write a piece, whole or not at all."""
        write_items(self.folder / f"{piece:06d}.jsonl", items)


@final
@dataclass(frozen=True)
class Remaining:
    """Pieces without the documents removed so far by stages over the whole corpus."""

    pieces: PieceFolder
    stages: Sequence[tuple[Stage, Path]]

    @property
    def count(self) -> int:
        """Return how many pieces there are."""
        return self.pieces.count

    def items(self, piece: int) -> Iterator[Item]:
        """Yield a piece's items, those removed as `Skipped` in their places."""
        removed: dict[int, str] = {}
        for stage, folder in reversed(self.stages):
            removed |= stage.removed(folder, piece)
        for place, item in enumerate(self.pieces.items(piece)):
            yield Skipped(item.id, removed[place]) if place in removed else item


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write items as JSON lines, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_durably(path) as lines:
        for item in items:
            lines.write(f"{json.dumps(_as_json(item), ensure_ascii=False)}\n".encode(errors="surrogatepass"))


def read_items(path: Path) -> Iterator[Item]:
    """Yield the items of a file in order."""
    with path.open(encoding="utf-8", errors="surrogatepass", newline="\n") as lines:
        for line in lines:
            yield _from_json(foreign_json.parse(line))


def cut_into_pieces(folder: Path, items: Iterable[Item], *, piece_characters: int) -> PieceFolder:
    """Write items as pieces of about `piece_characters`: where one ends depends on the items alone."""
    pieces = PieceFolder(folder, 0)
    count = 0
    rest = iter(items)
    for first in rest:
        pieces.write(count, _until_full(first, rest, piece_characters))
        count += 1
    return PieceFolder(folder, count)


def _until_full(first: Item, rest: Iterator[Item], piece_characters: int) -> Iterator[Item]:
    yield first
    num_characters = characters_of(first)
    while num_characters < piece_characters:
        item = next(rest, None)
        if item is None:
            return
        yield item
        num_characters += characters_of(item)


def characters_of(item: Item) -> int:
    """Return an item's length, with a hundred for everything but its text."""
    return 100 + (len(item.text) if isinstance(item, Document) else 0)


def _as_json(item: Item) -> Sequence[Any] | Mapping[str, Any]:
    if isinstance(item, Skipped):
        return {"id": item.id, "dropped": item.reason}
    return [item.id, item.text, item.messages, item.num_removed, *([item.split] if item.split else [])]


def _from_json(value: Any) -> Item:
    if isinstance(value, dict):
        return Skipped(value["id"], value["dropped"])  # pyright: ignore
    document_id, text, messages, num_removed, *split = value
    return Document(
        document_id, text, None if messages is None else tuple(messages), num_removed, split=split[0] if split else None
    )
