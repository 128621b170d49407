"""`lmtrain compare`: runs side by side."""

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import ConfigurationError
from lmtrain.report.comparing.comparison import compare as compare_runs
from lmtrain.report.comparing.comparison_chart import comparison_chart
from lmtrain.report.comparing.comparison_page import print_comparison
from lmtrain.report.runs.facts import read_run
from lmtrain.report.runs.find import find_runs
from lmtrain.report.runs.nearest import RUNS
from lmtrain.report.sweeps.trial_words import trained_on
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.sweep_file import read_sweep


def compare(words: list[str], *, program: str = "lmtrain compare") -> int:
    """Print runs side by side: seeds of one config are one choice, with its mean and spread."""
    parser = FlagParser(
        prog=program,
        description="Set runs side by side: seeds of one choice give its mean and spread, choices differ with noise.",
        epilog="Exit codes: 0 compared, 2 no such run, choice or metric, 4 none has finished or they do not compare.",
    )
    parser.add_argument("runs", type=Path, nargs="+", help="runs/NAME, a folder with runs below it, or runs/sweep-ID")
    parser.add_argument("--metric", default=BITS_PER_BYTE, help="what is lower where it is better (%(default)s)")
    parser.add_argument("--baseline", metavar="WORDS", help="compare with this choice, as optimizer=adamw; or the best")
    parser.add_argument(
        "--target",
        type=float,
        metavar="VALUE",
        help="value to reach; or where the named baseline ends, or else the worst choice",
    )
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw all curves into a file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(words)
    if arguments.chart and not arguments.chart.absolute().parent.is_dir():
        raise ConfigurationError(f"--chart {arguments.chart}: there is no folder {arguments.chart.parent}; create it.")
    if arguments.target is not None and not math.isfinite(arguments.target):
        raise ConfigurationError(f"--target {arguments.target} is reached by no run; write a finite number, as 1.9.")
    _require_folders(arguments.runs, words, program=program)
    found = compare_runs(
        find_runs(arguments.runs),
        metric=arguments.metric,
        baseline=arguments.baseline,
        target=arguments.target,
    )
    found = replace(found, notes=(*found.notes, *_of_searches(arguments.runs)))
    if arguments.chart:
        write_text(arguments.chart, f"{comparison_chart(found)}\n")
    if arguments.json:
        print(json.dumps(found.to_json()))
    else:
        print_comparison(found)
    return 0


def _of_searches(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the runs of searches among these folders that trained on: their scores here are none of their trials."""
    for path in paths:
        told = read_sweep(path)
        if told is not None:
            trials = {folder: read_run(folder) for folder in find_runs([path])}
            yield from (f"{run.name}: {why}." for run, why in trained_on(told, path.absolute(), trials).items())


def _require_folders(paths: list[Path], words: list[str], *, program: str) -> None:
    """Refuse names of runs without their folder, all at once, with the whole command."""
    bare = {str(path) for path in paths if not path.exists() and (RUNS / path / "status.json").exists()}
    if bare:
        typed = shlex.join([f"{RUNS}/{word}" if word in bare else word for word in words])
        raise ConfigurationError(f"{' and '.join(sorted(bare))}: not here but below {RUNS}/; write {program} {typed}.")
