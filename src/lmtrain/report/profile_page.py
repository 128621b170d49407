"""A run's profile, of its time and its memory: lines for the end of a run and a section of its page."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.markup import Markup, section, table, tag
from lmtrain.report.visible_text import visible
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import PROFILES


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The profiles of a run's ranks, torch's tables of operators and the memory by kind, and their files."""

    tables: tuple[str, ...]
    memories: tuple[dict[str, Any], ...]
    files: tuple[Path, ...]


def read_profile(folder: Path) -> Profile | None:
    """Return a run's profile, None without one."""
    place = folder / PROFILES
    tables = [
        foreign_json.read_bytes(path).decode(errors="replace") for path in sorted(place.glob("operators_rank*.txt"))
    ]
    memories = [row for path in sorted(place.glob("memory_rank*.json")) if (row := read_json(path)).get("peak")]
    files = [path for path in sorted(place.glob("*")) if path.suffix in (".gz", ".pickle")]
    return Profile(tables=tuple(tables), memories=tuple(memories), files=tuple(files)) if tables or memories else None


def profile_lines(folder: Path) -> list[str]:
    """Return the profile for a terminal; empty without one."""
    found = read_profile(folder)
    if found is None:
        return []
    lines = [visible(line) for text in found.tables for line in text.splitlines()]
    for memory in found.memories:
        shown = ", ".join(f"{kind} {size}" for kind, size in _peak(memory) if not size.startswith("0"))
        lines += [f"{_memory_title(memory)}:", f"  {shown}"]
    return lines + [f"  {path}" for path in found.files]


def profile_section(folder: Path) -> Markup:
    """Return the profile for a page; nothing without one."""
    found = read_profile(folder)
    if found is None:
        return Markup("")
    parts = [tag("pre", text) for text in found.tables]
    for memory in found.memories:
        parts += [tag("h3", _memory_title(memory)), table(_peak(memory), numeric=True)]
    parts += [tag("p", f"{path.name}: {path}") for path in found.files]
    return section("Profile", *parts)


def _memory_title(memory: Mapping[str, Any]) -> str:
    size = format_quantity(sum(memory["peak"].values()), "bytes")
    rank, step, device = memory["rank"], memory["step"], memory["device"]
    return f"Memory of rank {rank} at the fullest moment of step {step} on {device}, {size}"


def _peak(memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(kind, format_quantity(num_bytes, "bytes")) for kind, num_bytes in memory["peak"].items()]
