"""What questions/start_up.py writes: a table of all starts, one of their phases, JSON, and a plot of stacked bars."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

COLD: Final = ", cold"
COLOURS: Final = ("#898781", "#2a78d6", "#8fbbee", "#e3a008", "#1d9a6c", "#8d5fd3", "#e34948", "#f3a6a5")
# A phase of any trainer -> the kind of work that the plot colours alike.
KINDS: Final = {
    "interpreter": "interpreter",
    "imports of the command line": "compose and check",
    "compose": "compose and check",
    "check": "compose and check",
    "import torch and lightning": "imports",
    "import torch": "imports",
    "import transformers": "imports",
    "import litgpt": "imports",
    "imports": "imports",
    "build": "build",
    "logger": "logger",
    "materialise and wrap": "materialise and wrap",
    "first step": "compile and first step",
}


@dataclass(frozen=True)
class Start:
    """One measured start: seconds on the clock, of the CPU, and of the CPU at the end of each phase."""

    clock: float
    cpu: float
    phases: dict[str, float]


Starts = Mapping[str, Sequence[Start]]


def markdown(starts: Starts) -> str:
    """Write two tables: every start, and those that train by phase."""
    lines = ["| start | CPU s | clock s | measured |", "|---|---:|---:|---:|"]
    for label, rows in starts.items():
        cpu, clock = (statistics.median(getattr(row, name) for row in rows) for name in ("cpu", "clock"))
        lines.append(f"| {label} | {cpu:.2f} | {clock:.2f} | {len(rows)} |")
    lines += ["", "| CPU seconds of each phase | |", "|---|---|"]
    for label, rows in trained(starts).items():
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases(rows).items())
        lines.append(f"| {label} | {parts} |")
    return "\n".join(lines)


def trained(starts: Starts) -> dict[str, Sequence[Start]]:
    """Return the starts that made a step."""
    return {label: rows for label, rows in starts.items() if rows[0].phases}


def phases(rows: Sequence[Start]) -> dict[str, float]:
    """Return the CPU seconds of each phase: medians of their ends, one taken from the next."""
    ends = {name: statistics.median(row.phases[name] for row in rows) for name in rows[0].phases}
    begins = [0.0, *ends.values()]
    return {name: max(0.0, end - begin) for (name, end), begin in zip(ends.items(), begins, strict=False)}


def as_json(starts: Starts) -> dict[str, Any]:
    """Return all that was measured, as plain values."""
    return {
        label: [{"clock_seconds": row.clock, "cpu_seconds": row.cpu, "cpu_at_end_of": row.phases} for row in rows]
        for label, rows in starts.items()
    }


def plot(starts: Starts, path: Path) -> None:
    """Draw a bar for each warm start, its phases stacked by kind of work; a cold one would hide the others."""
    from matplotlib.figure import Figure

    bars = {label: phases(rows) for label, rows in trained(starts).items() if not label.endswith(COLD)}
    figure = Figure(figsize=(9, 0.5 * len(bars) + 1.4), layout="constrained")
    axes: Any = figure.subplots()
    ends = dict.fromkeys(bars, 0.0)
    for kind, colour in zip(dict.fromkeys(KINDS.values()), COLOURS, strict=False):
        widths = [sum(s for name, s in bar.items() if KINDS[name] == kind) for bar in bars.values()]
        axes.barh(list(bars), widths, left=list(ends.values()), color=colour, label=kind)
        ends = {label: end + width for (label, end), width in zip(ends.items(), widths, strict=True)}
    for label, end in ends.items():
        axes.text(end, label, f" {end:.1f}", va="center")
    axes.invert_yaxis()
    axes.set_xlabel("CPU seconds to the end of the first optimizer step, warm")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=4, frameon=False, loc="upper center", bbox_to_anchor=(0.4, 1.35))
    figure.savefig(path, metadata={"Date": None})
