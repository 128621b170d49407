"""HTML for pages that work in any browser, on a phone too, without scripts: tags, tables, tiles, the page's frame.

Every text is escaped unless it is `Markup` already: a model or a person may have written it.
"""

import html
import math
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Final

from lmtrain.report.visible_text import visible

VOID: Final = frozenset({"meta", "rect", "line", "polyline", "polygon", "circle"})
MAX_COLUMNS: Final = 5  # of tiles
STYLE: Final = """
:root{color-scheme:light dark;--page:#fcfcfb;--ink:#0b0b0b;--dim:#52514e;--rule:#e1e0d9;--line:#2a78d6}
@media(prefers-color-scheme:dark){:root{--page:#1a1a19;--ink:#fff;--dim:#c3c2b7;--rule:#383835;--line:#3987e5}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:960px;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.5rem 0 0;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:2rem 0 .5rem}
h3{font-size:.9rem;font-weight:600;color:var(--dim);margin:.5rem 0}p{margin:.25rem 0;color:var(--dim)}
a{color:var(--line)}section{display:flow-root}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:16px}
.grid>:first-child:nth-last-child(odd){grid-column:1/-1}
.tiles{display:grid;grid-template-columns:repeat(var(--columns),1fr);gap:12px;margin-top:1rem}
@media(max-width:600px){.tiles{grid-template-columns:1fr 1fr}.tiles>:first-child:nth-last-child(odd){grid-column:1/-1}}
.tile{min-width:0;overflow-wrap:anywhere}.tile b{display:block;font-size:1.35rem;font-weight:600;line-height:1.2}
.tile span{color:var(--dim);font-size:.85rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--rule);font-weight:400;vertical-align:top}
th[scope=row]{color:var(--dim)}th[scope=col]{font-weight:600}
.numeric td{white-space:nowrap}
.numeric td,.numeric th[scope=col]:not(:first-child){text-align:right;font-variant-numeric:tabular-nums}
.swatch{font-size:1.2em;line-height:1}
pre{overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;padding:12px;border:1px solid var(--rule);
font:.85rem/1.5 ui-monospace,monospace;margin:0}
details{margin-top:.75rem}summary{cursor:pointer;color:var(--dim)}
.plot{position:relative;height:200px;margin:12px 24px 28px calc(var(--gutter) + 8px);font-size:12px;color:var(--dim)}
.tall .plot{height:360px}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.plot svg *{vector-effect:non-scaling-stroke}
.plot span{position:absolute;line-height:1;white-space:nowrap}
.plot .up{right:calc(100% + 8px);transform:translateY(-50%)}
.plot .across{top:calc(100% + 8px);transform:translateX(-50%)}
.plot .end{width:7px;height:7px;margin:-3.5px;border-radius:50%}
.bars svg{display:block;width:100%;margin-bottom:12px}
"""


class Markup(str):
    """Text that is HTML already; all other text is escaped."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """Return one element; `class_` becomes class, and `stroke_width` stroke-width."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"' for key, value in attributes.items()
    )
    if name in VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Put parts one after another, each escaped unless it is markup."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(visible(part)) for part in parts))


def table(rows: Sequence[Sequence[str]], *, head: Sequence[str] = (), numeric: bool = False) -> Markup:
    """Return a table whose first column names its rows; `numeric` aligns the other columns to the right.

    A named column without a value in any row is left out.
    """
    kept = [not number or not name or any(row[number] for row in rows) for number, name in enumerate(head)]
    head, rows = [*compress(head, kept)], [[*compress(row, kept)] for row in rows] if head else rows
    style = {"class_": "numeric"} if numeric else {}
    parts = [tag("tr", *(tag("th", name, scope="col") for name in head))] if head else []
    for name, *values in rows:
        parts.append(tag("tr", tag("th", name, scope="row"), *(tag("td", value) for value in values)))
    return tag("div", tag("table", *parts, **style), class_="scroll")


def section(title: str, *parts: str) -> Markup:
    """Return parts under a heading; nothing if all of them are empty."""
    return tag("section", tag("h2", title), *parts) if any(parts) else Markup("")


def details(title: str, text: str) -> Markup:
    """Return a text folded below its title; nothing if it is empty."""
    return tag("details", tag("summary", title), tag("pre", text)) if text else Markup("")


def tiles(rows: Sequence[tuple[str, str]]) -> Markup:
    """Return names and values as tiles, at most five in a row, in rows of nearly equal length."""
    shown = [tag("div", tag("b", value), tag("span", name), class_="tile") for name, value in rows]
    columns = math.ceil(len(rows) / math.ceil(len(rows) / MAX_COLUMNS)) if rows else 1
    return tag("div", *shown, class_="tiles", style=f"--columns:{columns}")


def web_page(title: str, *sections: str, style: str = "") -> str:
    """Return a whole HTML file; `style` is added to the style of all pages."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("title", title),
        tag("style", Markup(STYLE + style)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *sections), lang='en')}\n"
