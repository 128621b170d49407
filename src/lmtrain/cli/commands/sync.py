"""`lmtrain sync`: a run's metrics sent to MLflow, each point once."""

import json
from pathlib import Path

from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.tracking.mlflow.sync import sync as sync_run


def sync(words: list[str], *, program: str = "lmtrain sync") -> int:
    """Send one run's records missing in MLflow."""
    parser = FlagParser(prog=program, description="Send a run's metrics to MLflow, each point once.")
    parser.add_argument("run", type=Path, help="the run's folder: runs/NAME")
    parser.add_argument("--tracking-uri", help="where to; the default is where the run was tracked before")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(words)
    tracked = sync_run(arguments.run, tracking_uri=arguments.tracking_uri)
    answer = {"run_id": tracked.run_id, "is_complete": tracked.is_complete}
    print(json.dumps(answer) if arguments.json else f"{arguments.run} is complete in MLflow, run {tracked.run_id}")
    return 0
