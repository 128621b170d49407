"""The measured step of a config as people read it."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lmtrain.accounting.observed.step_changes import ChangeOutcome, best_first, without_gain
from lmtrain.accounting.observed.step_parts import Bench
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.show import show

UNEVEN_WORDS = "Rounds differ widely: other work had this machine for a while. Repeat when it is idle."
BOTTLENECKS = {
    "data": "data: the step waits for its batches",
    "host": "host: callbacks and the loop take longer than they should beside the device's work",
    "optimizer": "optimizer: its update takes more of a step than a forward pass",
    "compute": "compute: forward and backward, below what matrix products reach here",
    "compute at its limit": "compute at its limit: close to what matrix products reach here",
}
WORDS = {
    "data": "data: the next batch, on the device",
    "forward": "forward, with the loss",
    "backward": "backward",
    "optimizer": "optimizer, with clipping",
    "host": "callbacks and the loop",
}


def print_bench(bench: Bench, outcomes: Sequence[ChangeOutcome], *, title: str) -> None:
    """Print the page, in colour on a terminal."""
    show(page(bench, outcomes, title=title))


def page(bench: Bench, outcomes: Sequence[ChangeOutcome], *, title: str) -> RenderableType:
    """Lay out speed, parts, bottleneck and advice."""
    advice = [each.line() for each in best_first(outcomes)] or ["nothing that is known here"]
    if any(each.saved is None for each in best_first(outcomes)):
        advice.append("Measure what was not tried: the same command with --try, or with those words.")
    if useless := without_gain(outcomes):
        advice.append(f"Tried without gain: {useless}")
    return Group(
        Rule(Text(title, style="bold"), style="dim cyan"),
        _table(_speed(bench)),
        Text("\nA step by its parts", style="bold"),
        _table(_parts(bench)),
        Text("\nBottleneck: " + BOTTLENECKS[bench.bottleneck], style="bold"),
        Text("What would help", style="bold"),
        *(Padding(Text(line), (0, 0, 0, 2)) for line in advice),
        *([Text(f"\n{UNEVEN_WORDS}")] if bench.is_uneven else []),
    )


def _speed(bench: Bench) -> list[tuple[str, str]]:
    mfu = ", ".join(f"{value:.1%} {name}" for name, value in bench.mfu.items() if value is not None)
    rounds = sorted(1e3 * seconds for seconds in bench.step_seconds)
    spread = f" ({rounds[0]:.1f} to {rounds[-1]:.1f}), median of {len(rounds)} rounds" if len(rounds) > 1 else ""
    steps = format_count(bench.num_steps, "step")
    first = format_quantity(bench.setup_seconds + bench.first_step_seconds, "seconds")
    matmul = f"{(bench.peaks.matmul or 0.0) / 1e12:.3g} TFLOP/s, measured here{bench.peaks.busy}"
    return [
        ("step", f"{1e3 * bench.parts.whole:.1f} ms{spread}, {steps}"),
        ("tokens a second", f"{bench.tokens_per_second:,.0f}"),
        ("MFU", f"{mfu} of {bench.peaks.source}" if mfu else bench.peaks.source),
        ("of matmul rate", f"{bench.of_matmul:.1%} of {matmul}" if bench.of_matmul else "not measured"),
        ("peak memory", f"{bench.peak_bytes / 1e9:.2f} GB"),
        ("host syncs", "not counted" if bench.syncs_per_step is None else f"{bench.syncs_per_step:.1f} a step"),
        (
            "to the first step",
            f"{first}, of which {format_quantity(bench.first_step_seconds, 'seconds')} the step itself",
        ),
    ]


def _parts(bench: Bench) -> list[tuple[str, str]]:
    shares = bench.parts.shares()
    rows = {name: f"{1e3 * getattr(bench.parts, name):8.2f} ms  {shares[name]:5.1%}" for name in WORDS}
    if bench.parts.host == 0.0:
        rows["host"] = "less than can be told apart: the parts by themselves took as long as the step"
    return [(words, rows[name]) for name, words in WORDS.items()]


def _table(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(f"  {name}", value)
    return table
