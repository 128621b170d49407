"""The measured step of a config as people read it."""

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.quantities import format_quantity
from lmtrain.accounting.step_parts import Bench
from lmtrain.report.show import show

WORDS = {
    "data": "data: the next batch, on the device",
    "forward": "forward, with the loss",
    "backward": "backward",
    "optimizer": "optimizer, with clipping",
    "host": "callbacks and the loop",
}


def print_bench(bench: Bench, *, title: str) -> None:
    """Print the page, in colour on a terminal."""
    show(page(bench, title=title))


def page(bench: Bench, *, title: str) -> RenderableType:
    """Lay out speed, parts, bottleneck and advice."""
    advice = bench.advice() or ["nothing that is measured here"]
    return Group(
        Rule(Text(title, style="bold"), style="dim cyan"),
        _table(_speed(bench)),
        Text("\nA step by its parts", style="bold"),
        _table(_parts(bench)),
        Text("\nBottleneck: " + bench.bottleneck, style="bold"),
        Text("What would help", style="bold"),
        *(Text(f"  {line}") for line in advice),
    )


def _speed(bench: Bench) -> list[tuple[str, str]]:
    mfu = ", ".join(f"{value:.1%} {name}" for name, value in bench.mfu.items() if value is not None)
    return [
        ("step", f"{1e3 * bench.parts.whole:.1f} ms, mean of {bench.num_steps} after warming up"),
        ("first step", format_quantity(bench.first_step_seconds, "seconds")),
        ("tokens a second", f"{bench.tokens_per_second:,.0f}"),
        ("MFU", f"{mfu} of {bench.peak_source}" if mfu else bench.peak_source),
        ("peak memory", f"{bench.peak_bytes / 1e9:.2f} GB"),
    ]


def _parts(bench: Bench) -> list[tuple[str, str]]:
    shares = bench.parts.shares()
    return [
        (words, f"{1e3 * getattr(bench.parts, name):8.2f} ms  {shares[name]:5.1%}") for name, words in WORDS.items()
    ]


def _table(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(f"  {name}", value)
    return table
