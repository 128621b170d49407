"""`lmtrain tail RUN`: a run's newest logged steps, and those to come."""

import time
from pathlib import Path
from typing import Final

from lmtrain.report.runs.find import find_run
from lmtrain.report.runs.listing import RunInBrief, in_brief, lines_of, newest_lines
from lmtrain.report.visible_text import visible
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.storage.damage import told_as_damage
from lmtrain.tracking.log_tail import LogOffset, read_after
from lmtrain.tracking.settled_status import settled_status

POLL_SECONDS: Final = 0.5


def tail(words: list[str], *, program: str = "lmtrain tail") -> int:
    """Print the last steps of a run's log, and follow it until the run ends; Ctrl-C ends this and not the run."""
    parser = FlagParser(prog=program, description="Print a run's newest steps, and follow it to its end.")
    parser.add_argument("run", type=Path, help="the run's folder: runs/NAME")
    parser.add_argument("-n", type=int, default=10, metavar="LINES", help="of what is there already (10)")
    parser.add_argument("--once", action="store_true", help="do not follow it")
    asked = parser.parse_args(words)
    folder = find_run(asked.run)
    log, brief = folder / "metrics.jsonl", _brief(folder)
    num_steps, share = brief.num_steps, brief.trained_share
    found = log.stat() if log.exists() else None
    place = LogOffset() if found is None else LogOffset(found.st_ino, found.st_size)
    if brief.inherited_words:
        print(f"{brief.inherited_words}.", flush=True)
    for line in newest_lines(log, asked.n, num_steps, trained_share=share):
        print(line, flush=True)
    try:
        while not asked.once:
            status = settled_status(folder)  # before the log, whose end is read below
            batch = read_after(log, place)
            place = batch.next
            for line in lines_of(batch.points, num_steps, trained_share=share):
                print(line, flush=True)
            if status is None or status.status != "RUNNING":
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return 0
    run = _brief(folder)
    print(f"{visible(run.name)}: {run.status.lower()} at step {run.step:,}")
    return 0


def _brief(folder: Path) -> RunInBrief:
    with told_as_damage(folder, fix="restore it, or name another run"):
        return in_brief(folder)
