"""A past step's text, document by document, the least expected first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from lmtrain.report.visible_text import visible


@dataclass(frozen=True, kw_only=True)
class StepDocument:
    """A document, or a piece of one, of a step: its place, its loss in nats a token, and its text.

    `worst` is the text around its least expected token; None: nothing was scored. `source` is a mixture's.
    """

    sequence: int
    rank: int
    micro_step: int
    row: int
    first_token: int
    num_tokens: int
    num_learned: int
    nats_per_token: float | None
    worst: str | None
    text: str
    source: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return dict(self.__dict__)


def by_loss(documents: Sequence[StepDocument]) -> list[StepDocument]:
    """Sort the documents, the highest loss (or none that is a number) first; unscored ones stay in their order."""
    scored = [one for one in documents if one.nats_per_token is not None]
    scored.sort(key=lambda one: math.inf if math.isnan(one.nats_per_token or 0.0) else one.nats_per_token or 0.0)
    return [*reversed(scored), *(one for one in documents if one.nats_per_token is None)]


def documents_table(documents: Sequence[StepDocument]) -> Table:
    """Return a line a document."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    is_mixed = any(one.source is not None for one in documents)
    if is_mixed:
        table.add_column("source", no_wrap=True)
    for name in ("seq.", "rank", "micro", "row", "tokens", "nats/token"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("text, around its least expected token", no_wrap=True, overflow="ellipsis", ratio=1)
    for one in documents:
        place = (str(one.sequence), str(one.rank), str(one.micro_step), f"{one.row:,}", f"{one.num_tokens:,}")
        loss = "-" if one.nats_per_token is None else f"{one.nats_per_token:.3f}"
        source = [visible(one.source or "")] if is_mixed else []
        table.add_row(*source, *place, loss, one_line(one.worst if one.worst is not None else one.text))
    return table


def full_lines(document: StepDocument) -> list[str]:
    """Return a document with its whole text."""
    loss = "" if document.nats_per_token is None else f", {document.nats_per_token:.3f} nats/token"
    source = "" if document.source is None else f"{visible(document.source)}, "
    head = f"{source}sequence {document.sequence}, tokens {document.first_token:,} to "
    last = document.first_token + document.num_tokens - 1
    return [f"{head}{last:,}{loss}", *(f"  | {line}" for line in visible(document.text).splitlines()), ""]


def one_line(text: str) -> str:
    """Return a text with its line breaks and other control characters written out."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
