"""A run's profile, of its time and its memory, as lines for the end of a run and for its page."""

from pathlib import Path

from lmtrain.report.visible_text import visible
from lmtrain.storage import foreign_json
from lmtrain.tracking.run_folder import PROFILES


def profile_lines(folder: Path) -> list[str]:
    """Return torch's tables of operators and of allocations, and the other files of a run; empty without any."""
    place, lines = folder / PROFILES, list[str]()
    for path in sorted(place.glob("*_rank*.txt")):
        lines += map(visible, foreign_json.read_bytes(path).decode(errors="replace").splitlines())
    return lines + [f"  {path}" for path in sorted(place.glob("*")) if path.suffix in (".gz", ".pickle")]
