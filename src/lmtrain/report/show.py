"""A page for a person: in colour on a terminal, else plain text without control characters."""

import io
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lmtrain.report.visible_text import visible

COLUMNS: Final = 92
MOST_OF_A_RULE: Final = 50  # columns of a title
MOST_COLUMNS: Final = 10_000  # of a table's row in a file or a pipe


def show(page: RenderableType, *, soft_wrap: bool = False) -> None:
    """Print a page; `soft_wrap` leaves long lines whole, for copying paths and commands."""
    if sys.stdout.isatty():
        console = literal_console()
        console.print(page, width=min(COLUMNS, console.width), soft_wrap=soft_wrap)
    else:
        sys.stdout.write(plain_text(page, soft_wrap=soft_wrap))
        sys.stdout.flush()


def title_line(title: str) -> RenderableType:
    """Return the line above a plan: its title in a rule, or below one that it would not fit."""
    if len(title) <= MOST_OF_A_RULE:
        return Rule(Text(title, style="bold"), style="dim cyan")
    return Group(Rule(style="dim cyan"), Text(title, style="bold"))


def pairs(rows: Iterable[tuple[str, RenderableType]], *, width: int = 18) -> Table:
    """Return names, at least `width` columns of them, and their values."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", min_width=width)
    table.add_column()
    for name, value in rows:
        table.add_row(f"  {name}", value)
    return table


def columns(rows: Sequence[Sequence[RenderableType]], *, head: Sequence[str] = ()) -> Table:
    """Return a table without lines: the first column at the left, the others at the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=bool(head), header_style="dim")
    for index, name in enumerate(head or [""] * max(map(len, rows), default=0)):
        table.add_column(name, justify="right" if index else "left", overflow="fold", no_wrap=index > 0)
    for row in rows:
        table.add_row(*row)
    return table


def plain_text(page: RenderableType, *, soft_wrap: bool = False) -> str:
    """Return a page as lines of plain text, without spaces at their ends; a row under a head is one line, for grep."""
    file = io.StringIO()
    for part in _parts(page):
        console = literal_console(file=file, width=_width(part), color_system=None, force_terminal=False)
        console.print(part, soft_wrap=soft_wrap)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _parts(page: RenderableType) -> Iterable[RenderableType]:
    return chain.from_iterable(map(_parts, page.renderables)) if isinstance(page, Group) else (page,)


def _width(part: RenderableType) -> int:
    """Return the columns of a part: a table with a head has room for its longest row."""
    if not (isinstance(part, Table) and part.show_header):
        return COLUMNS
    console = literal_console(width=MOST_COLUMNS)
    return max(COLUMNS, Measurement.get(console, console.options, part).maximum)


class LiteralConsole(Console):
    """A console for literal text: a name or a path of somebody else's folder may hold anything."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with a replacement for each character of control, those that turn a line's direction too."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


def literal_console(**settings: Any) -> Console:
    """Return a console that takes [/brackets] and :colons: as they are."""
    return LiteralConsole(markup=False, emoji=False, **settings)
