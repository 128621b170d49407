"""`lmtrain ledger`: where the seconds of a run went."""

import argparse
import json
from pathlib import Path

from lmtrain.report.ledger.log_line import implied_speed
from lmtrain.report.ledger.page import print_ledger
from lmtrain.report.ledger.run_ledger import RunLedger, read_ledger
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.storage.damage import told_as_damage


def ledger(words: list[str], *, program: str = "lmtrain ledger") -> int:
    """Print where the time of a run went, also while it runs."""
    parser = FlagParser(prog=program, description="Show where every second of a run went.")
    parser.add_argument("run", type=Path, help="the run's folder: runs/NAME")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--at",
        type=int,
        metavar="STEP",
        help="speed and MFU from the log line before STEP to its own, pauses in between included",
    )
    arguments = parser.parse_args(words)
    with told_as_damage(arguments.run, fix="restore it, or name another run"):
        return _told(arguments, read_ledger(arguments.run.absolute()))


def _told(arguments: argparse.Namespace, found: RunLedger) -> int:
    if arguments.at is not None:
        line = implied_speed(arguments.run.absolute(), found, step=arguments.at)
        print(json.dumps(line.to_json()) if arguments.json else line.text)
    elif arguments.json:
        print(json.dumps(found.to_json()))
    else:
        print_ledger(found)
    return 0
