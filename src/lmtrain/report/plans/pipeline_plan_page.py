"""A pipeline's plan as text: a row per stage, all together, the disk, and the reasons behind the figures."""

import textwrap
from collections.abc import Iterator

from lmtrain.accounting.quantities import Unit, format_quantity
from lmtrain.accounting.training_plan.stages import PipelinePlan, StagePlan

WIDTH = 80
NAME_WIDTH = 16
UNKNOWN = "not known"


def plan_text(plan: PipelinePlan) -> str:
    """Return the plan as lines of 80 columns."""
    width = max(NAME_WIDTH, *(len(stage.name) for stage in plan.stages))
    lines = [
        f"{plan.name}: every stage ahead",
        f"  {'':<{width}}{'tokens':>9}{'time':>11}{'dollars':>11}{'disk':>10}  by",
    ]
    lines += [f"  {stage.name:<{width}}{_cells(stage)}" for stage in plan.stages]
    lines.append(f"  {'together':<{width}}{_figures('', plan)}")
    return "\n".join([*lines, *(line for note in _notes(plan) for line in _wrapped(note))])


def _cells(stage: StagePlan) -> str:
    if stage.problem or stage.is_done:
        return f"{'no plan' if stage.problem else 'done':>9}"
    tokens = "" if stage.tokens is None else format_quantity(stage.tokens)
    return f"{_figures(tokens, stage)}  {stage.basis}".rstrip()


def _figures(tokens: str, of: StagePlan | PipelinePlan) -> str:
    """Return the cells of a stage, or of all."""
    cells: tuple[tuple[float | None, Unit, int], ...] = (
        (of.seconds, "seconds", 11),
        (of.usd, "usd", 11),
        (of.disk_bytes, "bytes", 10),
    )
    known = (f"{UNKNOWN if each is None else format_quantity(each, unit):>{width}}" for each, unit, width in cells)
    return f"{tokens:>9}{''.join(known)}"


def _notes(plan: PipelinePlan) -> Iterator[str]:
    """Yield the room on the disk, each stage's problems and reasons, and the way to unknown figures."""
    if plan.disk_bytes is not None:
        free = "" if plan.free_bytes is None else f"; {format_quantity(plan.free_bytes, 'bytes')} are free here"
        short = ", too few: free some space, or set run.root to a larger disk" if plan.fits_disk is False else ""
        yield f"disk: {format_quantity(plan.disk_bytes, 'bytes')} at once, at most{free}{short}"
    for stage in plan.stages:
        yield from (f"{stage.name}: {line}" for line in (stage.problem, *stage.lacking) if line)
    for stage in plan.stages:
        if stage.reasons:
            yield f"{stage.name}: {'; '.join(stage.reasons)}"
    if any(stage.seconds is None and not stage.problem for stage in plan.stages):
        yield "A time needs the device's peak: lmtrain doctor measures it, each.cluster=NAME knows it."
    if all(stage.usd is None for stage in plan.stages):
        yield "Dollars need a price: each.cluster.usd_per_gpu_hour=3."
    yield "Assumed rates and their sources: docs/pipelines.md."


def _wrapped(note: str) -> list[str]:
    return textwrap.wrap(
        note, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
