"""A run's last page in the terminal: its result next to compressors', its cost, and its files.

Lines are not wrapped: paths and commands are copied whole.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from lmtrain.accounting.observed.metric_names import ALL_OF_THEM, BITS_PER_BYTE, speed_name
from lmtrain.accounting.observed.time_accounts import kind_words
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.report.kept_flags import kept_flags
from lmtrain.report.runs.facts import REPORT_FILE, RunRecord, profile_lines
from lmtrain.report.show import show
from lmtrain.report.visible_text import visible
from lmtrain.tracking.run_log import newest

SAMPLE_LINES: Final = 14
NUM_KINDS_OF_TIME: Final = 4


def print_summary(folder: Path, *, allowed: Sequence[str] = ()) -> None:
    """Print the summary of a run's folder, in colour on a terminal; `allowed` are targets that a person has typed."""
    show(page(RunRecord(folder), allowed=allowed), soft_wrap=True)


def page(run: RunRecord, *, allowed: Sequence[str] = ()) -> RenderableType:
    """Lay out the facts of a run; unknown ones are left out."""
    parts: list[RenderableType] = [Text(""), Rule(Text(run.name, style="bold"), style="dim cyan"), _took(run)]
    if run.time.wall_seconds:
        parts.append(_time(run))
    if run.status is not None and run.status.reason:
        parts.append(Text(f"{run.shown_status.lower()}: {run.status.reason}", style="red"))
    if (held_out := run.held_out) is not None:
        read = f"{held_out.part_words}, windows of {held_out.context_tokens} tokens"
        parts.append(_heading(f"Bits per byte of held-out text: {read}"))
        rows = [(name, f"{value:.3f}") for name, value in held_out.worst_first()]
        for (name, _), line in zip(rows, _aligned(rows), strict=True):
            line.stylize("bold cyan" if name == held_out.after_words else "dim")
            parts.append(line)
    if profile := profile_lines(run.folder):
        parts += [_heading("Where the profiled steps went"), *map(Text, profile)]
    if run.samples:
        parts += [_heading("A sample of what it writes"), *_sample(run)]
    return Group(*parts, _heading("Where it is"), *_places(run, allowed))


def _took(run: RunRecord) -> Text:
    inherited = f" ({words})" if (words := run.own.inherited_words) else ""
    parts = [f"{format_quantity(run.tokens)} tokens{inherited} in {format_count(run.step, 'step')}"]
    if run.speed is not None:
        share = f"{run.loss_share:.0%} of all; " if run.loss_share <= ALL_OF_THEM else ""
        speed = f"{format_quantity(round(run.speed.tokens_per_second))} {speed_name(run.loss_share)}"
        parts.append(
            f"{speed} ({share}timed over {format_quantity(run.speed.seconds, 'seconds')} after the first step)"
        )
    if (mfu := run.mfu("palm", "steps")) is not None:
        parts.append(f"MFU {mfu:.1%} (PaLM)")
    if run.usd is not None:
        parts.append(format_quantity(run.usd, "usd"))
    if skipped := int(newest(run.points, "train/skipped_steps") or 0):
        parts.append(f"{format_count(skipped, 'step')} skipped as spikes")
    return Text(", ".join(parts))


def _time(run: RunRecord) -> Text:
    """Return the largest kinds of time."""
    kinds = sorted(run.time.seconds, key=lambda kind: -run.time.seconds[kind])[:NUM_KINDS_OF_TIME]
    shares = ", ".join(f"{kind_words(kind)} {run.time.share(kind):.0%}" for kind in kinds)
    clock = format_quantity(run.time.wall_seconds, "seconds")
    return Text(f"{clock} on the clock: {shares}; all of it: lmtrain ledger {shlex.quote(str(run.folder))}")


def _sample(run: RunRecord) -> list[Text]:
    sample = run.samples[-1]
    lines = visible(f"{sample.get('prompt', '')}{sample.get('text', '')}").expandtabs(4).splitlines()
    shown = [*lines[:SAMPLE_LINES], *(["[...]"] if len(lines) > SAMPLE_LINES else [])]
    return [Text(f"  {line}", style="green") for line in shown]


def _places(run: RunRecord, allowed: Sequence[str]) -> list[Text]:
    rows: list[tuple[str, str]] = []
    if run.checkpoints:
        last, best = run.checkpoints[-1], run.best
        rows.append(("checkpoint, the best too" if best == last else "last checkpoint", str(last.path)))
        if best is not None and best != last:
            rows.append((f"best checkpoint ({best.metrics[BITS_PER_BYTE]:.3f})", str(best.path)))
    rows.append(("metrics", str(run.folder / "metrics.jsonl")))
    rows.append(("all of it as a page", str(run.folder / REPORT_FILE)))
    if run.status is not None and run.status.mlflow_run_id:
        rows.append(("MLflow run", run.status.mlflow_run_id))
    if run.checkpoints:
        flags = kept_flags(config_dir=None, allowed=allowed)
        rows.append(("to talk to it", shlex.join(["lmtrain", "chat", str(run.folder), *flags])))
    return _aligned(rows)


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _aligned(rows: Sequence[tuple[str, str]]) -> list[Text]:
    """Write rows of a name and a value, with the values below one another."""
    width = max(len(name) for name, _ in rows)
    return [Text.assemble((f"  {name:<{width}}   ", "dim"), value) for name, value in rows]
