"""HTML as nested tags with every text escaped: a model or a person may have written it."""

import html
from collections.abc import Iterable, Sequence
from itertools import compress

from lmtrain.report.visible_text import visible

VOID = frozenset({"meta", "rect", "line", "polyline", "polygon", "circle"})


class Markup(str):
    """Text in HTML already; all other text is escaped."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """Return one element; `class_` is class, and `stroke_width` is stroke-width."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"' for key, value in attributes.items()
    )
    if name in VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Put parts one after another."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(visible(part)) for part in parts))


def table(rows: Sequence[Sequence[str]], *, head: Sequence[str] = (), numeric: bool = False) -> Markup:
    """Return a table whose first column names its rows; the others stand to the right where they are numbers.

    A named column without a value in any row is left out.
    """
    kept = [not number or not name or any(row[number] for row in rows) for number, name in enumerate(head)]
    head, rows = [*compress(head, kept)], [[*compress(row, kept)] for row in rows] if head else rows
    style = {"class_": "numeric"} if numeric else {}
    parts = [tag("tr", *(tag("th", name, scope="col") for name in head))] if head else []
    for name, *values in rows:
        parts.append(tag("tr", tag("th", name, scope="row"), *(tag("td", value) for value in values)))
    return tag("div", tag("table", *parts, **style), class_="scroll")
