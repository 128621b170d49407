"""`lmtrain show RUN`: one run's state, results, files and next commands."""

from pathlib import Path

from lmtrain.report.runs.find import find_runs
from lmtrain.report.runs.listing import in_brief, table_of
from lmtrain.report.show import show as show_page
from lmtrain.report.summary import print_summary
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.storage.damage import told_as_damage


def show(words: list[str], *, program: str = "lmtrain show") -> int:
    """Print the state of runs, and the summary at a run's end."""
    parser = FlagParser(prog=program, description="Show a run: its state, results, files, what is next.")
    parser.add_argument("run", type=Path, nargs="+", help="the run's folder: runs/NAME")
    for folder in find_runs(parser.parse_args(words).run):
        with told_as_damage(folder, fix="restore it, or name another run"):
            show_page(table_of([in_brief(folder)]))
            print_summary(folder)
    return 0
