"""The rules of a split: by a hash of the documents' names, by place in reading order, or as the source names them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from data_pipelines.progress import stage, tell
from data_pipelines.sources.base import Document, Source
from data_pipelines.stages.digests import digest_of
from data_pipelines.stages.held_out_tail import split_tail
from data_pipelines.stages.split import (
    HASH,
    MAX_DOCUMENT_CHARACTERS,
    NAMED,
    TAIL,
    TRAIN,
    HeldOut,
    cut_if_longer,
    split_documents,
)
from data_pipelines.stages.stage import content_of
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError, suggest

Read = Callable[[], Iterable[Document]]
TYPED_RULES: Final = (HASH, TAIL)


def held_out_of(source: Source, rule: str, *, fractions: tuple[float, float], budget: int | None = None) -> HeldOut:
    """Return the held-out fractions, of validation and test, under a rule fit for the source and the budget.

    Raises:
        ConfigurationError: An unknown rule, or one that needs the end of a text that is not read to its end, or not
        read twice.
    """
    if rule not in TYPED_RULES:
        fix = suggest(rule, TYPED_RULES)
        raise ConfigurationError(f"data.folder.split={rule} is not {' or '.join(TYPED_RULES)}.{fix}")
    if rule == HASH:
        if source.names_validation:
            return HeldOut(0.0, 0.0, NAMED)
        return HeldOut(*fractions)
    nearest = f"nearest valid: data.folder.split={HASH}"
    if source.names_validation:
        msg = f"data.folder.split={rule} has no effect beside source.validation_paths"
        raise ConfigurationError(f"{msg}; leave one out, {nearest}.")
    if budget is not None:
        msg = f"data.folder.split={rule} is the end of the text, and a budget of {budget:,} tokens stops before it"
        raise ConfigurationError(f"{msg} (budget.tokens, data.folder.token_budget); {nearest}.")
    if source.read_once:
        msg = f"data.folder.split={rule} reads the text twice, and source {source.name} streams from the hub"
        raise ConfigurationError(f"{msg}; set {source.read_once}, or {nearest}.")
    return HeldOut(*fractions, rule)


def split_by_rule(read: Read, measure: Read, *, held_out: HeldOut) -> Iterator[tuple[str, Document]]:
    """Yield each document of `read` with its split, in order; `measure` gives the same to look ahead in."""
    return RULES[held_out.rule](read, measure, held_out)


def _by_hash(read: Read, measure: Read, held_out: HeldOut) -> Iterator[tuple[str, Document]]:
    del measure
    return split_documents(read(), held_out=held_out, tell=tell)


def _by_place(read: Read, measure: Read, held_out: HeldOut) -> Iterator[tuple[str, Document]]:
    num_characters = 0
    with stage("measure the text") as progress:
        for document in measure():
            num_characters += len(content_of(document))
            progress.advance(documents=1)
    yield from split_tail(read(), held_out=held_out, num_characters=num_characters)


def _as_named(read: Read, measure: Read, held_out: HeldOut) -> Iterator[tuple[str, Document]]:
    """Follow the source; tell of training documents with the content of a validation document."""
    del measure, held_out
    held_out_digests: set[bytes] = set()
    num_leaks = 0
    for document in read():
        if document.split is not None:
            held_out_digests.add(digest_of(document))
        elif digest_of(document) in held_out_digests:
            num_leaks += 1
        for piece in cut_if_longer(document, MAX_DOCUMENT_CHARACTERS):
            yield document.split or TRAIN, piece
    if num_leaks:
        fix = "deduplicate=exact takes them out of the training text"
        tell(f"  {format_count(num_leaks, 'training document')} equal to one of source.validation_paths: {fix}")


RULES: Final[Mapping[str, Callable[[Read, Read, HeldOut], Iterator[tuple[str, Document]]]]] = {
    HASH: _by_hash,
    TAIL: _by_place,
    NAMED: _as_named,
}
