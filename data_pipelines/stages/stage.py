"""The interface of cleaning and deduplication stages, and the documents that never leave them."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from data_pipelines.sources.base import Document, Item, Skipped, Source
from data_pipelines.stages.pieces import Pieces
from lmtrain.tokenizers.base import is_unicode

OF_DATATROVE = ("datatrove", "spacy", "xxhash")  # with the packages that its filters import
Scope = Literal["document", "order", "corpus"]


@dataclass(frozen=True)
class PipelineJob:
    """Work in numbered tasks, to run at the same time on any machine with the same files; `run` takes a number."""

    name: str
    num_tasks: int
    run: Callable[[int], object]


class Stage:
    """Turns a dropped document into `Skipped`, and passes on others' `Skipped`.

    `scope` is its view: one document, the ones before it ("order"), or all of them ("corpus").
    """

    scope: Scope = "document"

    def look_at(self, document: Document) -> Item:
        """Return the document, another one in its place, or why it goes."""
        raise NotImplementedError

    def __call__(self, documents: Iterable[Item], /) -> Iterator[Item]:
        """Yield one item for each, in the same order; a call knows nothing of earlier calls."""
        return (item if isinstance(item, Skipped) else self.look_at(item) for item in documents)

    def fingerprint_parts(self) -> Mapping[str, Any]:
        """Return the deciding facts."""
        raise NotImplementedError

    def jobs(self, pieces: Pieces, folder: Path) -> tuple[PipelineJob, ...]:
        """Return, one after another, the jobs over a corpus on disk; none for scope "document"."""
        del pieces, folder
        return ()

    def removed(self, folder: Path, piece: int) -> Mapping[int, str]:
        """Return, once the jobs are done, the reasons of a piece's drops, by their place in it."""
        del folder, piece
        return {}


@runtime_checkable
class Engine(Protocol):
    """Where stages run; the items do not depend on it."""

    def __call__(self, source: Source, stages: Sequence[Stage], /, *, folder: Path) -> Iterator[Item]:
        """Yield the source's items in order, each document through all stages or dropped with a reason.

        `folder` holds work not to be done twice; it need not exist.
        """
        ...


def in_turn(stages: Iterable[Stage], documents: Iterable[Item]) -> Iterator[Item]:
    """Send documents through stages one after another."""
    items: Iterator[Item] = iter(documents)
    for stage in stages:
        items = stage(items)
    return items


class OnlyEncodable(Stage):
    """Turns documents unfit for any tokenizer into `Skipped`: empty ones, and those with unrepaired half characters."""

    def look_at(self, document: Document) -> Item:
        """Return the document, or its defect."""
        content = content_of(document)
        if not content or content.isspace():
            return Skipped(document.id, "empty")
        return document if is_unicode(content) else Skipped(document.id, "lone surrogates")

    def fingerprint_parts(self) -> Mapping[str, Any]:
        """Return its name: it has no settings, and is always there."""
        return {"stage": "encodable"}


def silence_datatrove() -> None:
    """Keep datatrove's log out of this process's output; its tasks' output is in their jobs' folders."""
    from loguru import logger  # pyright: ignore[reportMissingImports]  # an extra

    logger.disable("datatrove")


def runs_of(stages: Sequence[Stage]) -> list[tuple[Stage, ...]]:
    """Return stages in runs: stages of single documents together, every other one by itself.

    The first run, also when there is none, and every other run of that kind ends with the drop of documents unfit for
    any tokenizer.
    """
    runs: list[list[Stage]] = [[]]
    for stage in stages:
        if stage.scope == "document" and (not runs[-1] or runs[-1][-1].scope == "document"):
            runs[-1].append(stage)
        else:
            runs.append([stage])
    alone = [not run or run[0].scope == "document" for run in runs]
    return [(*run, OnlyEncodable()) if each else tuple(run) for run, each in zip(runs, alone, strict=True)]


def key_of(stages: Sequence[Stage]) -> str:
    """Return a short name for all settings of stages, also for those of the work's division.

    Files of another cut are of no use, so they lie elsewhere.
    """
    settings = [(type(stage).__name__, sorted(vars(stage).items())) for stage in stages]
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:12]


def content_of(document: Document) -> str:
    """Return a document's text for a reader: of a conversation, the words of its turns."""
    if document.messages is None:
        return document.text
    return "\n\n".join(_strings(document.messages))


def with_strings(document: Document, change: Callable[[str], str]) -> Document:
    """Return the document with every string of its content changed; roles and other names stay."""
    if document.messages is None:
        text = change(document.text)
        return document if text == document.text else replace(document, text=text)
    return replace(document, messages=tuple(_changed(message, change) for message in document.messages))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings([held for name, held in value.items() if name != "role"])  # pyright: ignore
    elif isinstance(value, (list, tuple)):
        for held in value:  # pyright: ignore
            yield from _strings(held)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: held if name == "role" else _changed(held, change) for name, held in value.items()}  # pyright: ignore
    if isinstance(value, (list, tuple)):
        return [_changed(held, change) for held in value]  # pyright: ignore
    return value
