"""A run sent to the embedded store, and what is there of it."""

from lmtrain.tracking.mlflow.client import Store, default_uri, open_client
from lmtrain.tracking.mlflow.sink import follow, read_state
from lmtrain.tracking.status import Status


def send(run, status=None, *, tracking_uri=None, drain_seconds=0.0):
    status = status or Status("FINISHED", exit_code=0)
    store = Store(run.root, tracking_uri or default_uri(run.root), "lmtrain")
    return follow(run.path, store, last_status=lambda: status, drain_seconds=drain_seconds)


def client_of(run):
    return open_client(Store(run.root, default_uri(run.root), "lmtrain"))


def stored(run):
    return client_of(run).get_run(read_state(run.path).run_id)


def history(run, key):
    points = client_of(run).get_metric_history(read_state(run.path).run_id, key)
    return sorted((point.step, point.value) for point in points)
