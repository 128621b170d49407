"""`mlflow server` on a PostgreSQL of its own, as a team has it, under eight trials at once."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.request import urlopen

import pytest

from lmtrain.tracking.mlflow import sink as mlflow_sink
from lmtrain.tracking.mlflow.client import Store, open_client
from lmtrain.tracking.mlflow.sink import follow, read_state
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.tracking.status import Status

NUM_TRIALS = 8
NUM_STEPS = 60
FINISHED = Status("FINISHED", exit_code=0)

pytestmark = [pytest.mark.external, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Postgres:
    """A cluster in a folder, reached by a socket there; PostgreSQL does not run as root."""

    programs: Path
    folder: Path
    user: str | None

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg://postgres@/postgres?host={self.folder}"

    def call(self, program: str, *words: str) -> None:
        command = [str(self.programs / program), "-D", str(self.folder / "data"), *words]
        subprocess.run(command, user=self.user, cwd=self.folder, check=True, capture_output=True)

    def start(self) -> None:
        options = f"-c listen_addresses='' -k {self.folder} -c fsync=off"
        self.call("pg_ctl", "start", "-w", "-s", "-l", str(self.folder / "log"), "-o", options)

    def crash(self) -> None:
        self.call("pg_ctl", "stop", "-m", "immediate")


@contextmanager
def postgres() -> Generator[Postgres]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = found[-1] if found else Path(shutil.which("initdb") or "")
    if not initdb.is_file():
        pytest.skip("PostgreSQL is not installed")
    user = "postgres" if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="lmtrain-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        cluster = Postgres(initdb.parent, folder, user)
        cluster.call("initdb", "--no-sync", "-U", "postgres", "-A", "trust", "-E", "UTF8")
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.crash()


@contextmanager
def server(uri: str, folder: Path) -> Generator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--host", "127.0.0.1"]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--port", str(port), "--workers", "1"]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = folder / "server.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=errors, stderr=errors, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 200
        while not _answers(f"{address}/health"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "no answer"
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def _answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def trial(root: Path, number: int) -> RunFolder:
    folder = RunFolder(root / f"sweep/trial-{number}", root=root)
    folder.create(sweep="sweep")
    folder.start_attempt(f"seed: {number}\n", [f"seed={number}"])
    points(folder, range(1, NUM_STEPS // 2 + 1), number)
    return folder


def points(folder: RunFolder, steps: range, number: int) -> None:
    RunLog(folder.path).extend([Point(time.time(), step, step, {"train/loss": number + step / 100}) for step in steps])


def send(folder: RunFolder, address: str, has_ended: Event) -> None:
    """Follow a trial as its sink does."""
    store = Store(folder.root, address, "lmtrain")
    ended = lambda: FINISHED if has_ended.is_set() else None  # noqa: E731
    is_complete = follow(folder.path, store, last_status=ended, drain_seconds=150.0)
    os._exit(0 if is_complete else 1)


def test_eight_trials_lose_nothing_and_send_nothing_twice_also_when_the_database_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mlflow_sink, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(mlflow_sink, "POLL_SECONDS", 0.2)
    trials = [trial(tmp_path, number) for number in range(NUM_TRIALS)]
    fork = get_context("fork")  # the imports of MLflow once; record locks are of a process, as the sinks are
    has_ended = fork.Event()
    with postgres() as cluster, server(cluster.uri, tmp_path) as address:
        client = open_client(Store(tmp_path, address, "lmtrain"))
        sinks = [fork.Process(target=send, args=(each, address, has_ended)) for each in trials]
        for sink in sinks:
            sink.start()
        while not any((each.path / "mlflow_points.json").exists() for each in trials):
            time.sleep(0.05)
        cluster.crash()
        for number, each in enumerate(trials):  # training goes on; steps from the last checkpoint come again
            RunLog(each.path).truncate_after(NUM_STEPS // 2 - 5)
            points(each, range(NUM_STEPS // 2 - 4, NUM_STEPS + 1), number)
        cluster.start()
        has_ended.set()
        for sink in sinks:
            sink.join(200)
        assert [sink.exitcode for sink in sinks] == [0] * NUM_TRIALS
        for number, each in enumerate(trials):
            run_id = read_state(each.path).run_id
            assert run_id is not None
            found = client.get_metric_history(run_id, "train/loss")
            told = sorted((point.step, point.value) for point in found)
            assert told == [(step, number + step / 100) for step in range(1, NUM_STEPS + 1)]
            assert client.get_run(run_id).info.status == "FINISHED"
        experiment = client.get_experiment_by_name("lmtrain")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id])
        assert len(runs) == NUM_TRIALS + 1, "a run a trial, and one parent"
        parents = {run.data.tags["mlflow.parentRunId"] for run in runs if run.info.run_name != "sweep"}
        assert len(parents) == 1
