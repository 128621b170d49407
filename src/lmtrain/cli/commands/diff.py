"""`lmtrain diff RUN RUN`: two runs' differences in settings, versions and results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmtrain.errors import EXIT_DONE
from lmtrain.report.runs.find import find_run, names_apart
from lmtrain.report.runs.listing import RunInBrief, in_brief, notes_of
from lmtrain.report.show import show
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.storage import foreign_yaml
from lmtrain.storage.damage import told_as_damage
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.flat_config import flatten
from lmtrain.tracking.run_folder import RunFolder

OF_EVERY_RUN: Final = ("run.name",)
SCORE: Final = "bits_per_byte"
RESULTS: Final = ("status", "step", "tokens", "inherited_tokens", "loss", SCORE, "scored_step", "seconds")
ABSENT: Final = "-"
Read = TypeVar("Read")


def diff(words: list[str], *, program: str = "lmtrain diff") -> int:
    """Print each difference of two runs on a line: a setting, a package's version or commit, a result."""
    parser = FlagParser(prog=program, description="Print what two runs differ in.")
    parser.add_argument("first", type=Path, help="runs/NAME")
    parser.add_argument("second", type=Path, help="runs/NAME")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(words)
    first, second = (find_run(path) for path in (asked.first, asked.second))
    parts = (("settings", _settings), ("made with", _versions), ("results", _results))
    found = {part: _differences(_read(read, first), _read(read, second)) for part, read in parts}
    briefs = [_read(in_brief, folder) for folder in (first, second)]
    notes = notes_of(briefs)
    if asked.json:
        print(json.dumps(found | {"notes": notes}))
        return EXIT_DONE
    names = names_apart([first, second])
    table = Table("", names[first], names[second], box=None, pad_edge=False, header_style="bold")
    for part, rows in found.items():
        table.add_row(part, style="dim")
        for name, values in rows.items():
            pairs = zip(values, briefs, strict=True)
            table.add_row(f"  {name}", *(_marked(value, run) if name == SCORE else value for value, run in pairs))
        if not rows:
            table.add_row("  the same")
    show(Group(table, *(Text(note, style="dim") for note in notes)))
    return EXIT_DONE


def _differences(first: dict[str, str], second: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return the differing values, in the order of the first's names and then the second's."""
    pairs = {name: (first.get(name, ABSENT), second.get(name, ABSENT)) for name in [*first, *second]}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _marked(score: str, run: RunInBrief) -> str:
    return f"{score} before training" if run.is_scored_untrained else score


def _read(read: Callable[[Path], Read], folder: Path) -> Read:
    with told_as_damage(folder, fix="restore it, or name another run"):
        return read(folder)


def _settings(folder: Path) -> dict[str, str]:
    config: Any = foreign_yaml.read(folder / "config.yaml") if (folder / "config.yaml").exists() else {}
    flat = flatten(cast("dict[str, object]", config or {}))
    return {name: value for name, value in flat.items() if name not in OF_EVERY_RUN}


def _versions(folder: Path) -> dict[str, str]:
    attempts = RunFolder(folder).attempts()
    if not attempts:
        return {}
    git = read_json(attempts[-1] / "git.json")
    return flatten(
        {**read_json(attempts[-1] / "versions.json"), "commit": git.get("commit"), "dirty": git.get("dirty")}
    )


def _results(folder: Path) -> dict[str, str]:
    brief = in_brief(folder).to_json()
    return {name: _shown(brief[name]) for name in RESULTS}


def _shown(value: Any) -> str:
    return ABSENT if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
