"""The worker of a process pool: it sends each file of documents named on standard input through the stages."""

import pickle
import signal
import sys
from pathlib import Path

from data_pipelines.stages.pieces import read_items, write_items
from data_pipelines.stages.stage import in_turn


def main(stages_file: str) -> None:
    """Put the results of each file's documents in its place, and answer its name."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever asked is gone: go too, in silence
    stages = pickle.loads(Path(stages_file).read_bytes())  # noqa: S301  written by the engine that started this
    for line in sys.stdin:
        path = Path(line.rstrip("\n"))
        write_items(path, in_turn(stages, read_items(path)))
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
