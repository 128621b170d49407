"""A run sent to the embedded store, and what is there of it."""

from lmtrain.tracking.mlflow.client import Store, default_uri, open_client
from lmtrain.tracking.mlflow.sink import follow, read_state
from lmtrain.tracking.status import Status


def send(run, status=None, **settings):
    status = status or Status("FINISHED", exit_code=0)
    settings = {"tracking_uri": default_uri(run.root), "experiment": "lmtrain", "drain_seconds": 0.0, **settings}
    return follow(run.path, last_status=lambda: status, **settings)


def client_of(run):
    return open_client(Store(run.root, default_uri(run.root), "lmtrain"))


def stored(run):
    return client_of(run).get_run(read_state(run.path).run_id)


def history(run, key):
    points = client_of(run).get_metric_history(read_state(run.path).run_id, key)
    return sorted((point.step, point.value) for point in points)
