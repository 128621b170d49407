"""The measured step of a config as text."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from lmtrain.accounting.observed.bench import Bench
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.show import pairs

BOTTLENECKS = {
    "data": "data: the step waits for its batches",
    "host": "host: callbacks and the loop take longer than they should next to the device's work",
    "optimizer": "optimizer: its update takes more of a step than a forward pass",
    "compute": "compute: forward and backward, below the rate of matrix products on this machine",
    "compute at its limit": "compute at its limit: close to the rate of matrix products on this machine",
}
PARTS = {
    "data": "data: the next batch, on the device",
    "forward": "forward, with the loss",
    "backward": "backward",
    "optimizer": "optimizer, with clipping",
    "host": "callbacks and the loop",
}


def page(bench: Bench, *, title: str) -> RenderableType:
    """Lay out speed, parts and bottleneck."""
    uneven = "Rounds differ widely: other work used this machine. Repeat when it is idle."
    return Group(
        Rule(Text(title, style="bold"), style="dim cyan"),
        pairs(_speed(bench)),
        Text("\nA step by its parts", style="bold"),
        pairs(_parts(bench)),
        Text("\nBottleneck: " + BOTTLENECKS[bench.bottleneck], style="bold"),
        *([Padding(Text(uneven), (0, 0, 0, 2))] if bench.is_uneven else []),
    )


def _speed(bench: Bench) -> list[tuple[str, str]]:
    mfu = ", ".join(f"{value:.1%} {name}" for name, value in bench.mfu.items() if value is not None)
    rounds = sorted(1e3 * seconds for seconds in bench.step_seconds)
    spread = f" ({rounds[0]:.1f} to {rounds[-1]:.1f}), median of {len(rounds)} rounds" if len(rounds) > 1 else ""
    first, all_of_it = (
        format_quantity(seconds, "seconds")
        for seconds in (bench.first_step_seconds, bench.setup_seconds + bench.first_step_seconds)
    )
    matmul = f"{(bench.peaks.matmul or 0.0) / 1e12:.3g} TFLOP/s, measured"
    return [
        ("step", f"{1e3 * bench.parts.whole:.1f} ms{spread}, {format_count(bench.num_steps, 'step')}"),
        ("tokens per second", f"{bench.tokens_per_second:,.0f}"),
        ("MFU", f"{mfu} of {bench.peaks.source}" if mfu else bench.peaks.source),
        ("of matmul rate", f"{bench.of_matmul:.1%} of {matmul}" if bench.of_matmul else "not measured"),
        ("peak memory", f"{bench.peak_bytes / 1e9:.2f} GB"),
        ("host syncs", f"{bench.syncs_per_step:.1f} per step"),
        ("to the first step", f"{all_of_it}, of which {first} the step itself"),
    ]


def _parts(bench: Bench) -> list[tuple[str, str]]:
    shares = bench.parts.shares()
    rows = {name: f"{1e3 * getattr(bench.parts, name):8.2f} ms  {shares[name]:5.1%}" for name in PARTS}
    return [(words, rows[name]) for name, words in PARTS.items()]
