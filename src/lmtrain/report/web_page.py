"""The frame of a page for any browser, a phone's too, without scripts: head, style, sections, tiles."""

import math
from collections.abc import Sequence
from typing import Final

from lmtrain.report.charts import STYLE as CHART_STYLE
from lmtrain.report.markup import Markup, tag

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
"""


def web_page(title: str, *sections: str, style: str = "") -> str:
    """Return a whole file; `style` is added to the style of all pages."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("title", title),
        tag("style", Markup(STYLE + CHART_STYLE + style)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *sections), lang='en')}\n"


def section(title: str, *parts: str) -> Markup:
    """Return parts under a heading; nothing where all of them are empty."""
    return tag("section", tag("h2", title), *parts) if any(parts) else Markup("")


def tiles(rows: Sequence[tuple[str, str]]) -> Markup:
    """Return names and values as tiles in rows of nearly equal length, none alone in its row."""
    shown = [tag("div", tag("b", value), tag("span", name), class_="tile") for name, value in rows]
    return tag("div", *shown, class_="tiles", style=f"--columns:{columns(len(rows))}")


def columns(num_tiles: int) -> int:
    """Return how many tiles stand beside each other: five at most, and the last row lacks as few as can be."""
    return math.ceil(num_tiles / math.ceil(num_tiles / MAX_COLUMNS)) if num_tiles else 1
