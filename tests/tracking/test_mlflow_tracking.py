import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmtrain.tracking.mlflow.client import Store, default_uri, open_client
from lmtrain.tracking.mlflow.sink import read_state
from lmtrain.tracking.mlflow.sync import sync
from lmtrain.tracking.status import read_status

# Trains steps first..last, then ends, or waits to be killed.
TRAINER = """
import json, sys, time
from pathlib import Path
from lmtrain.tracking.mlflow.tracking import MlflowTracking
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.tracking.status import Status

settings = json.loads(sys.argv[1])
folder = RunFolder(Path(settings["path"]))
folder.create()
with folder.lock():
    folder.start_attempt("seed: 1\\n", [])
    tracking = MlflowTracking(tracking_uri=settings.get("uri"), drain_seconds=settings.get("drain", 60.0))
    tracking.start(folder)
    log = RunLog(folder.path)
    log.truncate_after(settings["first"] - 1)
    for step in range(settings["first"], settings["last"] + 1):
        log.extend([Point(time.time(), step, step, {"train/loss": float(step)})])
    print("trained", flush=True)
    if settings.get("wait"):
        time.sleep(600)
    is_complete = tracking.finish(Status("FINISHED", exit_code=0))
    print(json.dumps({"complete": is_complete, "heavy": sorted({"mlflow", "torch"} & sys.modules.keys())}))
"""

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(300)]


def start(path, first, last, **settings):
    text = json.dumps({"path": str(path), "first": first, "last": last, **settings})
    command = [sys.executable, "-c", TRAINER, text]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=path.parent.parent)


def finish(process):
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1]), err


def wait_for(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def sinks_of(path):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes()
        except OSError:
            continue
        if b"lmtrain.tracking.mlflow.sink" in text and str(path).encode() in text:
            found.append(int(entry.parent.name))
    return found


def history(root, path, key="train/loss"):
    client = open_client(Store(root, default_uri(root), "lmtrain"))
    run_id = read_state(path).run_id
    points = client.get_metric_history(run_id, key)
    return client.get_run(run_id).info.status, sorted((point.step, point.value) for point in points)


def test_run_that_was_killed_goes_on_in_the_same_curves(root):
    path = root / "a"
    trainer = start(path, 1, 8, wait=True)
    wait_for(lambda: read_state(path).run_id is not None)
    trainer.kill()
    trainer.communicate()
    wait_for(lambda: not sinks_of(path))
    assert history(root, path) == ("KILLED", [(step, float(step)) for step in range(1, 9)])
    status = read_status(path)
    assert status is not None
    assert (status.status, status.mlflow_run_id) == ("KILLED", read_state(path).run_id)

    result, _ = finish(start(path, 5, 12))  # from a checkpoint at step 4: steps 5 to 8 come again, at other times
    assert result == {"complete": True, "heavy": []}
    assert history(root, path) == ("FINISHED", [(step, float(step)) for step in range(1, 13)])
    assert [path.name for path in root.parent.iterdir()] == ["runs"]


def test_dead_server_costs_the_trainer_the_drain_and_no_point(root):
    path = root / "a"
    began = time.monotonic()
    trainer = start(path, 1, 500, uri="http://127.0.0.1:9", drain=1.0)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "trained\n"
    trained = time.monotonic() - began
    result, err = finish(trainer)

    assert trained < 20.0  # no wait for a server in it: starting Python and writing 500 lines
    assert not result["complete"]
    assert "lmtrain sync runs/a" in err
    assert not sinks_of(path)
    assert sync(path, tracking_uri=default_uri(root))
    assert history(root, path) == ("FINISHED", [(step, float(step)) for step in range(1, 501)])


def test_frozen_server_does_not_hold_up_the_end(root):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        trainer = start(root / "a", 1, 3, uri=uri, drain=2.0)
        wait_for(lambda: (root / "a" / "attempts" / "1" / "mlflow.log").exists())
        result, err = finish(trainer)
    assert not result["complete"]
    assert "lmtrain sync" in err
    assert not sinks_of(root / "a")


def test_sink_of_a_killed_trainer_and_a_dead_server_ends_by_itself(root):
    trainer = start(root / "a", 1, 3, uri="http://127.0.0.1:9", drain=1.0, wait=True)
    wait_for(lambda: read_state(root / "a").error is not None)
    trainer.kill()
    trainer.communicate()
    wait_for(lambda: not sinks_of(root / "a"), seconds=60.0)
