"""`lmtrain ui` and `lmtrain sync` as they are typed."""

import argparse
import json
from pathlib import Path

from lmtrain.tracking.sync import sync as sync_run
from lmtrain.tracking.ui import ui as serve_ui


def ui(words: list[str], *, program: str = "lmtrain ui") -> int:
    """Serve MLflow on a folder of runs until interrupted."""
    parser = argparse.ArgumentParser(prog=program, description="Open MLflow on the runs of this project.")
    parser.add_argument("root", nargs="?", type=Path, default=Path("runs"), help="folder of all runs (runs)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (this machine only)")
    parser.add_argument("--port", type=int, default=5000, help="port to listen on (5000)")
    arguments = parser.parse_args(words)
    serve_ui(arguments.root.absolute(), host=arguments.host, port=arguments.port)
    return 0


def sync(words: list[str], *, program: str = "lmtrain sync") -> int:
    """Send what MLflow lacks of one run."""
    parser = argparse.ArgumentParser(prog=program, description="Send a run's metrics to MLflow, each point once.")
    parser.add_argument("run", type=Path, help="the run's folder: runs/NAME")
    parser.add_argument("--tracking-uri", help="where to; the default is where the run was tracked before")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(words)
    tracked = sync_run(arguments.run, tracking_uri=arguments.tracking_uri)
    answer = {"run_id": tracked.run_id, "is_complete": tracked.is_complete}
    print(json.dumps(answer) if arguments.json else f"{arguments.run} is complete in MLflow, run {tracked.run_id}")  # noqa: T201
    return 0
