"""One run of ours as one run in MLflow: the same curves, parameters, files and state, each sent once.

MLflow keeps every point it is given, and a resumed run trains some steps again: a point is sent only when its step is
past the store's highest for its key, or before one that it follows in the log, as the score of an older checkpoint is.
Of a long curve only 2,000 are. MLflow draws curves over steps only; a few are
mirrored under by_tokens/, where the step is the number of tokens.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from mlflow.entities import Dataset, DatasetInput, Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from lmtrain.storage import foreign_yaml
from lmtrain.tracking import atomic_files
from lmtrain.tracking.feeding.curves import curve_points
from lmtrain.tracking.feeding.held_out_curves import HeldOutCurves
from lmtrain.tracking.feeding.thinning import BY_THE_CLOCK, BY_TOKENS, Thinning
from lmtrain.tracking.flat_config import MAXIMUM_VALUE_CHARACTERS, tracking_key
from lmtrain.tracking.mlflow.checkpoints import MlflowCheckpoints
from lmtrain.tracking.mlflow.client import Store, find_or_create
from lmtrain.tracking.mlflow.readable_params import readable_params
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.status import Status

METRICS_A_CALL = 900
ENTRIES_A_CALL = 100
RUN_TAG = "lmtrain.run"
SWEEP_TAG = "lmtrain.sweep"
PARENT_TAG = "mlflow.parentRunId"

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
OF_PROFILE = ("summary_rank*.json", "trace_rank*.json.gz", "memory_rank*.json", "memory_rank*.pickle")
DATASET_FACTS = ("name", "source", "fingerprint", "tokenizer_fingerprint", "vocab_size")

T = TypeVar("T")


class MlflowRun:
    """The MLflow side of a run folder; a method raises a dead server's errors, and can be repeated."""

    def __init__(self, client: MlflowClient, store: Store, folder: RunFolder) -> None:
        self._client = client
        self._folder = folder
        self._curves = HeldOutCurves(folder.metrics_path)
        identity = folder.read_identity()
        tags = {RUN_TAG: str(identity["run"]), "lmtrain.folder": str(folder.path), "mlflow.source.type": "LOCAL"}
        if identity.get("sweep"):
            given = str(identity.get("name", "")).rpartition("/")[0]  # of a trial NAME/trial-0000
            tags[PARENT_TAG] = open_sweep(client, store, str(identity["sweep"]), name=given)
        self.run_id = find_or_create(client, store, tags, name=folder.name, started_at=_started_at(identity))
        found = client.get_run(self.run_id)
        self._params = {str(key): str(value) for key, value in found.data.params.items()}
        self._highest = {str(metric.key): int(metric.step) for metric in found.to_proto().data.metrics}
        horizon = atomic_files.read_json(folder.plan_path).get("horizon", {})
        self._thinning = Thinning(horizon if isinstance(horizon, dict) else {}, count=self._count)
        self._held: dict[str, Metric] = {}  # of each curve the newest point left out
        self._read: dict[str, int] = {}  # of each curve the highest step read in the log
        self._steps_there: dict[str, set[int]] = {}  # of curves with older steps
        self._checkpoints = MlflowCheckpoints(client, self.run_id)
        over_steps = [step for key, step in self._highest.items() if not key.startswith((BY_TOKENS, BY_THE_CLOCK))]
        self._newest_step = max(over_steps, default=-1)
        self._num_attempts_sent = 0
        self._sent_files: dict[Path, int] = {}

    def mark_running(self) -> None:
        """Mark the run as going on, also when it had ended before."""
        self._client.update_run(self.run_id, status="RUNNING")

    def send_points(self, points: Sequence[Point], *, goes_on: bool) -> None:
        """Send the points missing in the store; infinite values and NaN become tags nonfinite.KEY.

        They are the log's first ones, or it `goes_on` with them.
        """
        apart = self._curves.apart(points)
        self._read = self._read if goes_on else {}
        late = self._late(apart, before=self._highest if goes_on else {})
        self._send_fresh(apart)
        self._send_metrics([each for each in late if math.isfinite(each.value)])
        self._newest_step = max([self._newest_step, *(point.step for point in points)])

    def send_load(self, points: Sequence[Point]) -> None:
        """Send the missing points of a node's load: MLflow's system metrics."""
        own = [replace(each, metrics=_of_the_clock(each.metrics)) for each in points]
        self._send_fresh(own)

    def _late(self, points: Sequence[Point], *, before: Mapping[str, int]) -> list[Metric]:
        """Return the points behind one of their curve's that they follow, but for those already in the store."""
        late: list[Metric] = []
        for metric in _metrics(points):
            key, highest = metric.key, self._read.get(metric.key, before.get(metric.key, -1))
            if metric.step < highest and metric.step not in self._steps_of(key):
                late.append(metric)
                self._steps_there[key].add(metric.step)
            self._read[key] = max(highest, metric.step)
        return late

    def _steps_of(self, key: str) -> set[int]:
        if key not in self._steps_there:
            self._steps_there[key] = {each.step for each in self._client.get_metric_history(self.run_id, key)}
        return self._steps_there[key]

    def _send_fresh(self, points: Sequence[Point]) -> None:
        fresh = [metric for metric in _metrics(points) if metric.step > self._highest.get(metric.key, -1)]
        finite = [metric for metric in fresh if math.isfinite(metric.value)]
        self._send_metrics(self._thinned(finite))
        odd = {f"nonfinite.{m.key}": f"{m.value} at step {m.step}" for m in fresh if not math.isfinite(m.value)}
        self._tag(odd)

    def send_attempts(self) -> None:
        """Send the parameters and the origin of each attempt not yet sent, and the new files."""
        for folder in self._folder.attempts()[self._num_attempts_sent :]:
            if all(map(self._folder.owns, [folder, *folder.iterdir()])):
                self._send_params(folder)
                self._tag(_origin_tags(folder))
            self._num_attempts_sent += 1
        self._send_files()
        self._send_checkpoints()

    def end(self, status: Status) -> None:
        """Give the run its last points and state; a clean stop, to go on with the same command, is no red cross."""
        self._send_metrics([each for each in self._held.values() if each.step > self._highest.get(each.key, -1)])
        self._checkpoints.try_again()
        self._send_checkpoints()
        self._tag({"lmtrain.exit_code": str(status.exit_code)})
        ended_at = time.time() if status.time is None else status.time
        state = "SCHEDULED" if status.is_clean_stop else status.status
        self._client.set_terminated(self.run_id, status=state, end_time=int(ended_at * 1000))

    def _thinned(self, metrics: Sequence[Metric]) -> list[Metric]:
        """Return the points to send; the newest of each curve left out is kept for the run's end."""
        newest, kept, held = dict(self._highest), list[Metric](), dict[str, Metric]()
        for metric in metrics:
            if self._thinning.keeps(metric.key, metric.step, before=newest.get(metric.key, -1)):
                newest[metric.key] = metric.step
                kept.append(metric)
            else:
                held[metric.key] = metric
        self._held |= held
        return kept

    def _send_metrics(self, metrics: Sequence[Metric]) -> None:
        for part in _parts(metrics, METRICS_A_CALL):
            self._client.log_batch(self.run_id, metrics=part)
            for metric in part:
                self._highest[metric.key] = max(metric.step, self._highest.get(metric.key, -1))

    def _send_checkpoints(self) -> None:
        self._checkpoints.send(self._folder.path / "checkpoints", newest_step=self._newest_step)

    def _count(self, key: str) -> int:
        return len(self._client.get_metric_history(self.run_id, key))

    def _send_params(self, folder: Path) -> None:
        config = cast("object", foreign_yaml.parse(_read(folder / "config.yaml")))
        plan = atomic_files.read_json(self._folder.plan_path)
        typed = _read(folder / "overrides.txt").splitlines()
        flat = readable_params(cast("dict[str, object]", config), typed, plan) if isinstance(config, dict) else {}
        new = {key: value for key, value in flat.items() if key not in self._params}
        for part in _parts(list(new.items()), ENTRIES_A_CALL):
            self._client.log_batch(self.run_id, params=[Param(key, value) for key, value in part])
            self._params |= dict(part)
        # MLflow refuses to change a parameter.
        self._tag({f"resume.{folder.name}.{key}": value for key, value in flat.items() if self._params[key] != value})

    def _send_files(self) -> None:
        attempts = [
            (folder / name, f"attempts/{folder.name}") for folder in self._folder.attempts() for name in OF_ATTEMPT
        ]
        profile = [
            (path, "profile")
            for pattern in OF_PROFILE
            for path in sorted((self._folder.path / "profile").glob(pattern))
        ]
        for path, place in [*profile, *((self._folder.path / name, None) for name in OF_RUN), *attempts]:
            is_sent = path.exists() and path.stat().st_size > 0 and self._folder.owns(path)
            changed_at = path.stat().st_mtime_ns if is_sent else None
            if changed_at is not None and self._sent_files.get(path) != changed_at:
                if path.name == "dataset.json":
                    self._send_dataset(path)
                self._client.log_artifact(self.run_id, str(path), place)
                self._sent_files[path] = changed_at

    def _send_dataset(self, path: Path) -> None:
        facts = atomic_files.read_json(path)
        splits = cast("dict[str, dict[str, object]]", facts.get("splits", {}))
        tokens = {name: split.get("num_tokens") for name, split in splits.items()}
        description = json.dumps({**{key: facts.get(key) for key in DATASET_FACTS}, "tokens": tokens})
        fingerprint = str(facts.get("fingerprint", ""))
        dataset = Dataset(
            str(facts.get("name", "data")), fingerprint[:36], "lmtrain", source=description, profile=description
        )
        self._client.log_inputs(self.run_id, datasets=[DatasetInput(dataset)])
        self._tag({"lmtrain.data_fingerprint": fingerprint})

    def _tag(self, tags: dict[str, str]) -> None:
        rows = [RunTag(tracking_key(key), value[:MAXIMUM_VALUE_CHARACTERS]) for key, value in tags.items()]
        for part in _parts(rows, ENTRIES_A_CALL):
            self._client.log_batch(self.run_id, tags=part)


def open_sweep(client: MlflowClient, store: Store, sweep: str, *, name: str = "") -> str:
    """Find or create the parent run of a sweep's trials, under its given name, and return its id."""
    return find_or_create(client, store, {SWEEP_TAG: sweep, "mlflow.source.type": "LOCAL"}, name=name or sweep)


def _metrics(points: Sequence[Point]) -> Iterator[Metric]:
    for point in points:
        for value in curve_points(point):
            yield Metric(tracking_key(value.key), value.value, int(value.time * 1000), value.step)


def _of_the_clock(metrics: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if key.startswith(BY_THE_CLOCK)}


def _origin_tags(folder: Path) -> dict[str, str]:
    git = atomic_files.read_json(folder / "git.json")
    environment = atomic_files.read_json(folder / "environment.json")
    versions = atomic_files.read_json(folder / "versions.json")
    tags = {
        "lmtrain.attempts": folder.name,
        "lmtrain.version": versions.get("lmtrain"),
        "lmtrain.host": environment.get("host"),
        "lmtrain.git_dirty": git.get("dirty"),
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.name": " ".join(_read(folder / "overrides.txt").split("\n")).strip() or "train.py",
    }
    return {key: str(value) for key, value in tags.items() if value is not None}


def _started_at(identity: dict[str, object]) -> float:
    created_at = identity.get("created_at")
    return created_at if isinstance(created_at, float) else time.time()


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
