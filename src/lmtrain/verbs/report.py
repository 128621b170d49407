"""`lmtrain report`: a run's folder as one HTML file."""

import argparse
from pathlib import Path

from lmtrain.report.html_page import write_report


def report(words: list[str], *, program: str = "lmtrain report") -> int:
    """Write report.html into a run's folder, also while it runs, and print its path."""
    parser = argparse.ArgumentParser(prog=program, description="Write all that a run's folder says as one HTML file.")
    parser.add_argument("run", type=Path, help="the run's folder: runs/NAME")
    print(write_report(parser.parse_args(words).run.absolute()))
    return 0
