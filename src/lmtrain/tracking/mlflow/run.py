"""One run as one run in MLflow: the same curves, parameters, files and state, each sent once.

MLflow keeps every point it is given, and a resumed run trains some steps again: a point is sent only if none of its
curve's at that step was.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from lmtrain.storage import foreign_yaml
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.following import SentPoints
from lmtrain.tracking.mlflow.client import Store, find_or_create
from lmtrain.tracking.parameters import MAXIMUM_VALUE_CHARACTERS, run_parameters, tracking_key
from lmtrain.tracking.redaction import redact_text
from lmtrain.tracking.run_folder import DATA_OF_ATTEMPT, PROFILES, RunFolder
from lmtrain.tracking.run_log import LogOffset, read_after
from lmtrain.tracking.status import Status
from lmtrain.tracking.sweep_file import NAME as SWEEP_FILE
from lmtrain.tracking.sweep_file import read_sweep

METRICS_A_CALL = 900
ENTRIES_A_CALL = 100
RUN_TAG = "lmtrain.run"
SWEEP_TAG = "lmtrain.sweep"
PARENT_TAG = "mlflow.parentRunId"
SENT = "mlflow_points.json"

# Named one by one: other files of the folders may hold secrets.
OF_RUN = ("plan.json", "dataset.json", "ledger.json", "report.html", "report.md", "card.html", "card.md")
OF_ATTEMPT = (
    "config.yaml",
    "overrides.txt",
    "git.json",
    "git.diff",
    "versions.json",
    "environment.json",
    "devices.json",
)
OF_PROFILE = ("operators_rank*.txt", "trace_rank*.json.gz", "memory_rank*.txt", "memory_rank*.pickle")

T = TypeVar("T")


class MlflowRun:
    """The MLflow side of a run folder; a method raises a dead server's errors, and can be repeated."""

    def __init__(self, client: MlflowClient, store: Store, folder: RunFolder) -> None:
        self._client, self._folder = client, folder
        identity = folder.read_identity()
        tags = {RUN_TAG: str(identity["run"]), "lmtrain.folder": str(folder.path), "mlflow.source.type": "LOCAL"}
        if identity.get("sweep"):
            given = str(identity.get("name", "")).rpartition("/")[0]  # of a trial NAME/trial-0000
            tags[PARENT_TAG] = open_sweep(client, store, str(identity["sweep"]), name=given)
        created_at = identity.get("created_at")
        started_at = created_at if isinstance(created_at, float) else time.time()
        self.run_id = find_or_create(client, store, tags, name=folder.name, started_at=started_at)
        found = client.get_run(self.run_id)
        self._params = {str(key): str(value) for key, value in found.data.params.items()}
        place = redact_text(f"{store.tracking_uri} {store.experiment} {self.run_id}")
        self._curves = SentPoints(folder.path / SENT, store=place)
        self._unsent: list[Metric] = []  # of a call that failed
        self._place = LogOffset()
        self._num_attempts_sent = 0
        self._sent_files: dict[Path, int] = {}

    def mark_running(self) -> None:
        """Mark the run as going on, also when it had ended before."""
        self._client.update_run(self.run_id, status="RUNNING")

    def send(self) -> bool:
        """Send what is missing in the store, about a megabyte of points at most; return whether that was all."""
        num_points = self._send_points()
        for folder in self._folder.attempts()[self._num_attempts_sent :]:
            if all(map(self._folder.owns, [folder, *folder.iterdir()])):
                self._send_params(folder)
                self._tag(_origin_tags(folder))
            self._num_attempts_sent += 1
        self._send_files()
        return num_points == 0

    def end(self, status: Status) -> None:
        """Give the run its state; a clean stop is not shown as a failure."""
        self._tag({"lmtrain.exit_code": str(status.exit_code)})
        ended_at = time.time() if status.time is None else status.time
        state = "SCHEDULED" if status.is_clean_stop else status.status
        self._client.set_terminated(self.run_id, status=state, end_time=int(ended_at * 1000))

    def _send_points(self) -> int:
        """Send a part of the log, without infinite values and NaN; return its number of points."""
        points, place = read_after(self._folder.metrics_path, self._place)
        if place.inode != self._place.inode:
            self._curves.begin_again()
        self._place = place
        for point in points:
            for name, value in point.metrics.items():
                metric = Metric(tracking_key(name), value, int(point.time * 1000), point.step)
                if math.isfinite(metric.value) and self._curves.take(metric.key, metric.step):
                    self._unsent.append(metric)
        has_news = bool(self._unsent)
        while self._unsent:
            self._client.log_batch(self.run_id, metrics=self._unsent[:METRICS_A_CALL])
            del self._unsent[:METRICS_A_CALL]
        if has_news:
            self._curves.keep()
        return len(points)

    def _send_params(self, folder: Path) -> None:
        config = cast("object", foreign_yaml.parse(_read(folder / "config.yaml")))
        plan = read_json(self._folder.plan_path)
        flat = run_parameters(cast("dict[str, object]", config), plan) if isinstance(config, dict) else {}
        new = {key: value for key, value in flat.items() if key not in self._params}
        for part in _parts(list(new.items()), ENTRIES_A_CALL):
            self._client.log_batch(self.run_id, params=[Param(key, value) for key, value in part])
            self._params |= dict(part)
        settings: Any = config.get("run", {}) if isinstance(config, dict) else {}
        notes = {"mlflow.note.content": str(settings["notes"])} if settings.get("notes") else {}
        self._tag(notes | {str(tag): "true" for tag in settings.get("tags") or ()})
        # MLflow refuses to change a parameter.
        self._tag({f"resume.{folder.name}.{key}": value for key, value in flat.items() if self._params[key] != value})

    def _send_files(self) -> None:
        folder = self._folder.path
        files: list[tuple[Path, str | None]] = [(folder / name, None) for name in OF_RUN]
        for attempt in self._folder.attempts():
            files += [(attempt / name, f"attempts/{attempt.name}") for name in OF_ATTEMPT]
        for pattern in OF_PROFILE:
            files += [(path, PROFILES) for path in sorted((folder / PROFILES).glob(pattern))]
        for path, place in files:
            if not path.exists() or path.stat().st_size == 0 or not self._folder.owns(path):
                continue
            changed_at = path.stat().st_mtime_ns
            if self._sent_files.get(path) != changed_at:
                self._client.log_artifact(self.run_id, str(path), place)
                self._sent_files[path] = changed_at

    def _tag(self, tags: Mapping[str, str]) -> None:
        rows = [RunTag(tracking_key(key), value[:MAXIMUM_VALUE_CHARACTERS]) for key, value in tags.items()]
        for part in _parts(rows, ENTRIES_A_CALL):
            self._client.log_batch(self.run_id, tags=part)


def open_sweep(client: MlflowClient, store: Store, sweep: str, *, name: str = "") -> str:
    """Find or create the parent run of a sweep's trials, under its given name, and return its id."""
    return find_or_create(client, store, {SWEEP_TAG: sweep, "mlflow.source.type": "LOCAL"}, name=name or sweep)


def end_sweep(client: MlflowClient, run_id: str, folder: Path, *, status: str) -> None:
    """Give a sweep's parent run its command, commit, best values and sweep.json, and its last state."""
    found = read_sweep(folder)
    if found is not None:
        program, _, _ = found.command.partition(" -m")
        tags = {"mlflow.source.name": program, "lmtrain.command": found.command}
        if found.trials and found.trials[0].runs:
            attempts = RunFolder(folder / found.trials[0].runs[0].folder).attempts()
            commit = read_json(attempts[-1] / "git.json").get("commit") if attempts else None
            tags |= {"mlflow.source.git.commit": str(commit)} if commit else {}
        for key, value in tags.items():
            client.set_tag(run_id, key, redact_text(value)[:MAXIMUM_VALUE_CHARACTERS])
        if (best := found.best_trial()) is not None:
            for key, value in best.values.items():  # tags: a continued sweep may find another
                client.set_tag(run_id, f"best.{tracking_key(key)}", redact_text(value)[:MAXIMUM_VALUE_CHARACTERS])
            if best.score is not None and math.isfinite(best.score):
                client.log_metric(run_id, tracking_key(f"best/{found.metric}"), best.score)
        client.log_artifact(run_id, str(folder / SWEEP_FILE))
    client.set_terminated(run_id, status=status, end_time=int(time.time() * 1000))


def _origin_tags(folder: Path) -> dict[str, str]:
    git = read_json(folder / "git.json")
    tags = {
        "lmtrain.attempts": folder.name,
        "lmtrain.version": read_json(folder / "versions.json").get("lmtrain"),
        "lmtrain.host": read_json(folder / "environment.json").get("host"),
        "lmtrain.git_dirty": git.get("dirty"),
        "lmtrain.data_fingerprint": read_json(folder / DATA_OF_ATTEMPT).get("fingerprint"),
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.name": read_json(folder / "job.json").get("program"),
        "lmtrain.overrides": " ".join(_read(folder / "overrides.txt").split()),
    }
    return {key: str(value) for key, value in tags.items() if value is not None}


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
