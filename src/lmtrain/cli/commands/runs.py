"""Commands that read runs: ls, show, tail, ledger, report, compare; and MLflow's: ui, sync."""

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.json_output import print_json
from lmtrain.report.runs.find import RUNS, find_run, find_runs, names_sweep
from lmtrain.report.visible_text import visible
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.storage.damage import refuse_damage

RUN: Final = "the run's folder: runs/NAME"
FIX: Final = "restore it, or name another run"
POLL_SECONDS: Final = 0.5


def _parser(program: str, about: str, *, run: str | None = RUN, has_json: bool = False, **more: Any) -> FlagParser:
    """Return a parser with the argument `run` (None: without it), and --json if the command has it."""
    parser = FlagParser(prog=program, description=about, **more)
    if run is not None:
        parser.add_argument("run", type=Path, help=run)
    if has_json:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def ls(words: list[str], *, program: str = "lmtrain ls") -> int:
    """Print runs with their state, step, loss, validation and clock; also those of other machines on this disk."""
    parser = _parser(program, "List runs, the one that changed last at the end.", run=None)
    parser.add_argument("runs", type=Path, nargs="*", default=[RUNS], help="folders with runs (runs)")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    asked = parser.parse_args(words)
    from lmtrain.report.runs.listing import read_runs, table_of
    from lmtrain.report.show import show as show_page

    found = read_runs(asked.runs)
    if asked.json:
        print_json([asdict(run) for run in found])
    else:
        show_page(table_of(found))
    return EXIT_DONE


def show(words: list[str], *, program: str = "lmtrain show") -> int:
    """Print the state of runs, and the summary at a run's end."""
    parser = _parser(program, "Show a run: its state, results, files, what is next.", run=None)
    parser.add_argument("run", type=Path, nargs="+", help=RUN)
    folders = find_runs(parser.parse_args(words).run)
    from lmtrain.report.runs.listing import in_brief, table_of
    from lmtrain.report.show import show as show_page
    from lmtrain.report.summary import print_summary

    for folder in folders:
        with refuse_damage(folder, fix=FIX):
            show_page(table_of([in_brief(folder)]))
            print_summary(folder)
    return EXIT_DONE


def tail(words: list[str], *, program: str = "lmtrain tail") -> int:
    """Print the last steps of a run's log, and follow it until the run ends; Ctrl-C ends this and not the run."""
    parser = _parser(program, "Print a run's newest steps, and follow it to its end.")
    parser.add_argument("-n", type=int, default=10, metavar="LINES", help="of the log so far (10)")
    parser.add_argument("--once", action="store_true", help="do not follow it")
    asked = parser.parse_args(words)
    from lmtrain.report.runs.listing import in_brief, lines_of, newest_lines
    from lmtrain.tracking.run_log import LogOffset, read_after
    from lmtrain.tracking.status import settled_status

    folder = find_run(asked.run)
    log, brief = folder / "metrics.jsonl", in_brief(folder)
    found = log.stat() if log.exists() else None
    place = LogOffset() if found is None else LogOffset(found.st_ino, found.st_size)
    for line in newest_lines(log, asked.n, brief.num_steps):
        print(line, flush=True)
    try:
        while not asked.once:
            status = settled_status(folder)  # before the log, so that its last lines are read
            points, place = read_after(log, place)
            for line in lines_of(points, brief.num_steps):
                print(line, flush=True)
            if status is None or status.status != "RUNNING":
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return EXIT_DONE
    run = in_brief(folder)
    print(f"{visible(run.name)}: {run.status.lower()} at step {run.step:,}")
    return EXIT_DONE


def ledger(words: list[str], *, program: str = "lmtrain ledger") -> int:
    """Print where the time of a run went, also while it runs."""
    parser = _parser(program, "Show where every second of a run went.", has_json=True)
    asked = parser.parse_args(words)
    from lmtrain.report.ledger import read_ledger
    from lmtrain.report.ledger_page import page
    from lmtrain.report.show import show as show_page

    with refuse_damage(asked.run, fix=FIX):
        found = read_ledger(asked.run.absolute())
        if asked.json:
            print_json(found.to_json())
        else:
            show_page(page(found))
    return EXIT_DONE


def report(words: list[str], *, program: str = "lmtrain report") -> int:
    """Write report.html into a run's folder, or sweep-ID.html next to a sweep's, also while it runs; print its path."""
    about = "Write a run's whole record, or a sweep's runs side by side, as one HTML file."
    parser = _parser(program, about, run="the run's folder: runs/NAME, or runs/sweep-ID of a sweep")
    path: Path = parser.parse_args(words).run.absolute()
    is_sweep = names_sweep(path)
    path = path if is_sweep else find_run(path)
    from lmtrain.report.run_page import write_report
    from lmtrain.report.sweep_page import write_sweep_report

    with refuse_damage(path, fix=FIX):
        page = write_sweep_report(path) if is_sweep else write_report(path)
    print(visible(str(page)))
    return EXIT_DONE


def compare(words: list[str], *, program: str = "lmtrain compare") -> int:
    """Print runs side by side: seeds of one config are one choice, with its mean and spread."""
    parser = _parser(
        program,
        "Compare runs: the seeds of a choice give its mean and spread, choices differ by more than noise or not.",
        run=None,
        has_json=True,
        epilog="Exit codes: 0 compared, 2 no such run, choice or metric, 4 none has finished or they do not compare.",
    )
    add = parser.add_argument
    add("runs", type=Path, nargs="+", help="runs/NAME, a folder with runs below it, or runs/sweep-ID")
    add("--metric", default=BITS_PER_BYTE, help="lower must be better (%(default)s)")
    add("--baseline", metavar="WORDS", help="compare with this choice, such as optimizer=adamw (the best)")
    target = "value to reach (the named baseline's last value, else the worst choice's)"
    add("--target", type=float, metavar="VALUE", help=target)
    asked = parser.parse_args(words)
    if asked.target is not None and not math.isfinite(asked.target):
        raise ConfigurationError(f"--target: must be a finite number, got {asked.target}.")
    from lmtrain.report.comparison import compare as compare_runs
    from lmtrain.report.comparison_page import page
    from lmtrain.report.show import show as show_page

    found = compare_runs(find_runs(asked.runs), metric=asked.metric, baseline=asked.baseline, target=asked.target)
    if asked.json:
        print_json(found.to_json())
    else:
        show_page(page(found))
    return EXIT_DONE


def ui(words: list[str], *, program: str = "lmtrain ui") -> int:
    """Serve MLflow on a folder of runs until interrupted."""
    parser = _parser(program, "Open MLflow on the runs of this project.", run=None)
    parser.add_argument("root", nargs="?", type=Path, default=RUNS, help="folder of all runs (runs)")
    parser.add_argument("--host", default="127.0.0.1", help="an address of this machine (127.0.0.1)")
    parser.add_argument("--port", type=int, default=5000, help="port to listen on (5000)")
    asked = parser.parse_args(words)
    from lmtrain.tracking.mlflow.ui import ui as serve_ui

    serve_ui(asked.root.absolute(), host=asked.host, port=asked.port)
    return EXIT_DONE


def sync(words: list[str], *, program: str = "lmtrain sync") -> int:
    """Send one run's records that MLflow lacks."""
    parser = _parser(program, "Send a run's metrics to MLflow, each point once.", has_json=True)
    parser.add_argument("--tracking-uri", help="of the store (where the run was tracked before)")
    asked = parser.parse_args(words)
    from lmtrain.tracking.mlflow.sync import sync as sync_run

    run_id = sync_run(asked.run, tracking_uri=asked.tracking_uri)
    answer = {"run_id": run_id, "is_complete": True}
    print_json(answer) if asked.json else print(f"{asked.run} is complete in MLflow, run {run_id}")
    return EXIT_DONE
