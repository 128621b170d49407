"""A run's profile, of its time and its memory: lines for the end of a run and a section of its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.markup import Markup, section, table, tag
from lmtrain.tracking.atomic_files import read_json
from lmtrain.training.trace_summary import FOLDER, MEMORY_KINDS, Operation, TraceSummary

NAME_CHARACTERS: Final = 60
PARTS: Final = {  # of a trace: its words in a line, and in a table
    "computing": ("computing", "computing"),
    "communication": ("communication", "communication alone"),
    "cpu_overhead": ("CPU overhead", "CPU overhead: dispatch, and Python between operators"),
    "idle": ("idle gaps", "idle gaps: the device without work, and no operator on its way"),
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The profiles of a run's ranks that can be read, and their files."""

    traces: tuple[TraceSummary, ...]
    memories: tuple[dict[str, Any], ...]
    files: tuple[Path, ...]


def read_profile(folder: Path) -> Profile | None:
    """Return a run's profile, None without one."""
    place = folder / FOLDER
    traces: list[TraceSummary] = []
    for path in sorted(place.glob("summary_rank*.json")):
        try:
            traces.append(TraceSummary.from_json(read_json(path)))
        except (KeyError, TypeError):
            continue
    memories = [row for path in sorted(place.glob("memory_rank*.json")) if (row := read_json(path)).get("peak")]
    files = [path for path in sorted(place.glob("*")) if path.suffix in (".gz", ".pickle")]
    return Profile(traces=tuple(traces), memories=tuple(memories), files=tuple(files)) if traces or memories else None


def profile_lines(folder: Path) -> list[str]:
    """Return the profile for a terminal; empty without one."""
    found = read_profile(folder)
    lines: list[str] = []
    for trace in found.traces if found else ():
        lines += [_title(trace), f"  {', '.join(f'{name} {_share(trace, key)}' for key, (name, _) in PARTS.items())}"]
    for memory in found.memories if found else ():
        shown = ", ".join(f"{kind} {size}" for kind, size in _peak(memory) if not size.startswith("0"))
        lines += [f"{_memory_title(memory)}:", f"  {shown}"]
    return lines + [f"  {path}" for path in (found.files if found else ())]


def profile_section(folder: Path) -> Markup:
    """Return the profile for a page; nothing without one."""
    found = read_profile(folder)
    if found is None:
        return Markup("")
    parts: list[str] = []
    for trace in found.traces:
        shares = [(name, _share(trace, key)) for key, (_, name) in PARTS.items()] if trace.seconds else []
        parts += [tag("p", f"{_title(trace)}."), table(shares, numeric=True)]
        for name, operations in _operations(trace):
            head = (name, "ms a step", "calls a step", "share of the time")
            parts.append(table(_rows(trace, operations), head=head, numeric=True))
    for memory in found.memories:
        parts += [tag("h3", _memory_title(memory)), table(_peak(memory), numeric=True)]
    parts += [tag("p", f"{path.name}: {path}") for path in found.files]
    return section("Profile", *parts)


def _title(trace: TraceSummary) -> str:
    steps = f"step {trace.last_step}" if trace.num_steps == 1 else f"{trace.num_steps} steps up to {trace.last_step}"
    each = format_quantity(trace.seconds / trace.num_steps, "seconds")
    return f"Profile of rank {trace.rank}, {steps}, {each} each (the profiler's own time included)"


def _share(trace: TraceSummary, part: str) -> str:
    return f"{getattr(trace, part) / (trace.seconds or 1.0):.1%}"


def _operations(trace: TraceSummary) -> list[tuple[str, Sequence[Operation]]]:
    found = [("kernels, by their time", trace.kernels), ("operators, by their own time on the host", trace.operators)]
    return [(name, operations) for name, operations in found if operations]


def _rows(trace: TraceSummary, operations: Sequence[Operation]) -> list[tuple[str, str, str, str]]:
    return [
        (
            each.name if len(each.name) <= NAME_CHARACTERS - 2 else f"{each.name[: NAME_CHARACTERS - 3]}…",
            f"{1e3 * each.seconds / trace.num_steps:.3f}",
            f"{round(each.calls / trace.num_steps, 1):g}",
            f"{each.seconds / (trace.seconds or 1.0):.1%}",
        )
        for each in operations
    ]


def _memory_title(memory: Mapping[str, Any]) -> str:
    size = format_quantity(sum(memory["peak"].values()), "bytes")
    rank, step, device = memory["rank"], memory["step"], memory["device"]
    return f"Memory of rank {rank} at the fullest moment of step {step} on {device}, {size}"


def _peak(memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(kind, format_quantity(memory["peak"].get(kind, 0), "bytes")) for kind in MEMORY_KINDS]
