"""The parent MLflow run of a sweep's trials; the first trial creates it, this ends it, also in a process of its own."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Final

from lmtrain.tracking.mlflow.client import Store, check_uri, default_uri, open_client
from lmtrain.tracking.status import StatusName

LIMIT_SECONDS: Final = 60


def finish_sweep(
    root: Path,
    sweep: str,
    *,
    tracking_uri: str | None = None,
    experiment: str = "lmtrain",
    status: StatusName = "FINISHED",
) -> str:
    """Give a sweep its last state and return the id of its run in MLflow.

    MLflow's errors pass through; the sweep's trials are stored without it.
    """
    check_uri(tracking_uri)
    store = Store(root.absolute(), tracking_uri or default_uri(root), experiment)
    client = open_client(store)
    from lmtrain.tracking.mlflow.run import open_sweep  # imports MLflow, after open_client has set it up

    run_id = open_sweep(client, store, sweep)
    client.set_terminated(run_id, status=status, end_time=int(time.time() * 1000))
    return run_id


def main() -> None:
    """End the sweep named on stdin, with the arguments of `finish_sweep`."""
    settings = json.loads(sys.stdin.read())
    signal.alarm(LIMIT_SECONDS)  # a call into a frozen server is given up
    finish_sweep(Path(settings.pop("root")), settings.pop("sweep"), **settings)


if __name__ == "__main__":
    main()
