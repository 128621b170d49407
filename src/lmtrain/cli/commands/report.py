"""`lmtrain report`: a run's folder, or a sweep's runs, as one HTML file."""

from functools import partial
from pathlib import Path

from lmtrain.report.runs.find import find_run
from lmtrain.report.runs.nearest import names_sweep
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.storage.damage import told_as_damage


def report(words: list[str], *, program: str = "lmtrain report") -> int:
    """Write report.html into a run's folder, or sweep-ID.html beside a sweep's, also while it runs; print its path."""
    about = "Write all that a run's folder says, or a sweep's runs side by side, as one HTML file."
    parser = FlagParser(prog=program, description=about)
    parser.add_argument("run", type=Path, help="the run's folder: runs/NAME, or runs/sweep-ID of a sweep")
    path: Path = parser.parse_args(words).run.absolute()
    if not names_sweep(path):
        path = find_run(path)  # before the page's imports, of seconds
    from lmtrain.report.run_page.page import write_report
    from lmtrain.report.sweeps.sweep_page import write_sweep_report

    with told_as_damage(path, fix="restore it, or name another run"):
        print(write_sweep_report(path) if names_sweep(path) else write_report(path, texts=partial(_texts, path)))
    return 0


def _texts(run: Path, step: int) -> list[str]:
    from lmtrain.run.stored_runs.step_texts import step_texts  # torch: for runs with spikes alone

    return step_texts(run, step)
