"""`lmtrain ls`: all runs, a line each, from their folders alone."""

import json
from dataclasses import replace
from pathlib import Path

from rich.console import Group
from rich.text import Text

from lmtrain.report.runs.find import find_runs, names_apart
from lmtrain.report.runs.listing import RunInBrief, footnotes_of, in_brief, notes_of, table_of
from lmtrain.report.show import show
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.storage.damage import told_as_damage


def ls(words: list[str], *, program: str = "lmtrain ls") -> int:
    """Print runs with their state, step, loss, validation and clock; also those of other machines on this disk."""
    parser = FlagParser(prog=program, description="List runs, the one that changed last at the end.")
    parser.add_argument("runs", type=Path, nargs="*", default=[Path("runs")], help="folders with runs (runs)")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    asked = parser.parse_args(words)
    names = names_apart(find_runs(asked.runs))
    found = [replace(_read(folder), name=name) for folder, name in names.items()]
    if asked.json:
        print(json.dumps([run.to_json() for run in found]))
    else:
        notes = [*footnotes_of(found), *notes_of(found)]
        show(Group(table_of(found), *(Text(note, style="dim") for note in notes)))
    return 0


def _read(folder: Path) -> RunInBrief:
    with told_as_damage(folder, fix="restore it, or name another run"):
        return in_brief(folder)
