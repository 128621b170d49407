"""A corpus on disk between stages: numbered files of JSON lines, documents and drops, each in its place."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, final

from data_pipelines.sources.base import Document, Item, Skipped
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import open_durably


@final
@dataclass(frozen=True)
class Pieces:
    """A number of pieces in a folder; each of `removals` returns the drops of a stage over all of them since.

    A drop is the reason by the document's place in a piece.
    """

    folder: Path
    count: int
    removals: Sequence[Callable[[int], Mapping[int, str]]] = ()

    def items(self, piece: int) -> Iterator[Item]:
        """Yield a piece's items in order, the dropped ones as `Skipped`, so that places do not shift."""
        removed: dict[int, str] = {}
        for removal in reversed(self.removals):
            removed |= removal(piece)
        for place, item in enumerate(read_items(self._file(piece))):
            yield Skipped(item.id, removed[place]) if place in removed else item

    def write(self, piece: int, items: Iterable[Item]) -> None:
        """Write a piece, whole or not at all."""
        write_items(self._file(piece), items)

    def without(self, removal: Callable[[int], Mapping[int, str]]) -> "Pieces":
        """Return the pieces after one more stage."""
        return replace(self, removals=(*self.removals, removal))

    def _file(self, piece: int) -> Path:
        return self.folder / f"{piece:06d}.jsonl"


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


def cut_into_pieces(folder: Path, items: Iterable[Item], *, piece_characters: int) -> Pieces:
    """Write items as pieces of about `piece_characters`: where one ends depends on the items alone."""
    pieces, rest = Pieces(folder, 0), iter(items)
    for first in rest:
        pieces.write(pieces.count, chain([first], until_full(rest, piece_characters - characters_of(first))))
        pieces = replace(pieces, count=pieces.count + 1)
    return pieces


def until_full(items: Iterator[Item], num_characters: int) -> Iterator[Item]:
    """Yield items, up to the one that brings them to `num_characters`."""
    while num_characters > 0 and (item := next(items, None)) is not None:
        num_characters -= characters_of(item)
        yield item


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
