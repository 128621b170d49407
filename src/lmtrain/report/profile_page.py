"""A run's profile, of its time and its memory, as lines for the end of a run and for its page."""

from pathlib import Path
from typing import Any

from lmtrain.accounting.quantities import format_quantity
from lmtrain.report.visible_text import visible
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import PROFILES


def profile_lines(folder: Path) -> list[str]:
    """Return torch's tables of operators, the memory by kind and the files of a run's ranks; empty without any."""
    place, lines = folder / PROFILES, list[str]()
    for path in sorted(place.glob("operators_rank*.txt")):
        lines += map(visible, foreign_json.read_bytes(path).decode(errors="replace").splitlines())
    for path in sorted(place.glob("memory_rank*.json")):
        memory: dict[str, Any] = read_json(path)
        if peak := memory.get("peak"):
            whole = format_quantity(sum(peak.values()), "bytes")
            rank, step, device = memory["rank"], memory["step"], memory["device"]
            lines.append(f"Memory of rank {rank} at the fullest moment of step {step} on {device}, {whole}:")
            kinds = [f"{kind} {format_quantity(size, 'bytes')}" for kind, size in peak.items() if size]
            lines.append(f"  {', '.join(kinds)}")
    return lines + [f"  {path}" for path in sorted(place.glob("*")) if path.suffix in (".gz", ".pickle")]
