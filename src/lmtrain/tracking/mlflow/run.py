"""One run as one run in MLflow: the same curves, parameters, files, checkpoints and state, each sent once.

MLflow keeps every point it is given, and a resumed run trains some steps again: a point is sent only if the store has
none of its curve's at that step. Of a long curve about 2,000 points are sent, because MLflow's pages stall beyond
(mlflow/mlflow/issues/5779); metrics.jsonl has all. MLflow draws curves over steps only: a few are mirrored under
by_tokens/, where the step is the number of tokens. Checkpoints are logged models by reference: no file is copied.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from mlflow.entities import Dataset, DatasetInput, LoggedModelOutput, Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, VALIDATION_LOSS
from lmtrain.storage import foreign_json, foreign_yaml
from lmtrain.storage.hashed_folder import MANIFEST
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.following import BY_TOKENS, HeldOutCurves, curve_points
from lmtrain.tracking.mlflow.client import Store, find_or_create
from lmtrain.tracking.parameters import MAXIMUM_VALUE_CHARACTERS, readable_params, tracking_key
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.status import Status

METRICS_A_CALL = 900
ENTRIES_A_CALL = 100
MOST_POINTS = 2000  # of a curve
FOR_ENDS = 20  # of them: the last point of an attempt is sent too
BY_THE_CLOCK = "system/"  # curves whose steps count the readings of a node
RUN_TAG = "lmtrain.run"
SWEEP_TAG = "lmtrain.sweep"
PARENT_TAG = "mlflow.parentRunId"
FOLDER_TAG = "lmtrain.checkpoint"
MODEL_TYPE = "lmtrain checkpoint"
RANKED_BY = (BITS_PER_BYTE, VALIDATION_LOSS)

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
        self._held_out = HeldOutCurves(folder.metrics_path)
        identity = folder.read_identity()
        tags = {RUN_TAG: str(identity["run"]), "lmtrain.folder": str(folder.path), "mlflow.source.type": "LOCAL"}
        if identity.get("sweep"):
            given = str(identity.get("name", "")).rpartition("/")[0]  # of a trial NAME/trial-0000
            tags[PARENT_TAG] = open_sweep(client, store, str(identity["sweep"]), name=given)
        self.run_id = find_or_create(client, store, tags, name=folder.name, started_at=_started_at(identity))
        found = client.get_run(self.run_id)
        self._params = {str(key): str(value) for key, value in found.data.params.items()}
        self._curves = Curves(client, self.run_id, known={str(each.key) for each in found.to_proto().data.metrics},
                              horizon=read_json(folder.plan_path).get("horizon"))  # fmt: skip
        self._models = LoggedModels(client, self.run_id, found.info.experiment_id)
        self._num_attempts_sent = 0
        self._sent_files: dict[Path, int] = {}

    def mark_running(self) -> None:
        """Mark the run as going on, also when it had ended before."""
        self._client.update_run(self.run_id, status="RUNNING")

    def send_points(self, points: Sequence[Point], *, goes_on: bool) -> None:
        """Send the points missing in the store; infinite values and NaN become tags nonfinite.KEY.

        They are the log's first ones, or it `goes_on` with them.
        """
        self._tag(self._curves.send(self._held_out.apart(points), goes_on=goes_on))

    def send_load(self, points: Sequence[Point]) -> None:
        """Send the missing points of a node's load: MLflow's system metrics."""
        self._curves.send(
            [
                Point(each.time, each.step, each.tokens, metrics)
                for each in points
                if (metrics := {key: value for key, value in each.metrics.items() if key.startswith(BY_THE_CLOCK)})
            ],
            goes_on=True,
        )

    def send_attempts(self) -> None:
        """Send the parameters and the origin of each attempt not yet sent, and the new files and checkpoints."""
        for folder in self._folder.attempts()[self._num_attempts_sent :]:
            if all(map(self._folder.owns, [folder, *folder.iterdir()])):
                self._send_params(folder)
                self._tag(_origin_tags(folder))
            self._num_attempts_sent += 1
        self._send_files()
        self._models.send(self._folder.path / "checkpoints", newest_step=self._curves.newest_step)

    def end(self, status: Status) -> None:
        """Give the run its last points and state; a clean stop is not shown as a failure."""
        self._curves.send_ends()
        self._models.send(self._folder.path / "checkpoints", newest_step=self._curves.newest_step, again=True)
        self._tag({"lmtrain.exit_code": str(status.exit_code)})
        ended_at = time.time() if status.time is None else status.time
        state = "SCHEDULED" if status.is_clean_stop else status.status
        self._client.set_terminated(self.run_id, status=state, end_time=int(ended_at * 1000))

    def _send_params(self, folder: Path) -> None:
        config = cast("object", foreign_yaml.parse(_read(folder / "config.yaml")))
        plan = read_json(self._folder.plan_path)
        typed = _read(folder / "overrides.txt").splitlines()
        flat = readable_params(cast("dict[str, object]", config), typed, plan) if isinstance(config, dict) else {}
        new = {key: value for key, value in flat.items() if key not in self._params}
        for part in _parts(list(new.items()), ENTRIES_A_CALL):
            self._client.log_batch(self.run_id, params=[Param(key, value) for key, value in part])
            self._params |= dict(part)
        # MLflow refuses to change a parameter.
        self._tag({f"resume.{folder.name}.{key}": value for key, value in flat.items() if self._params[key] != value})

    def _send_files(self) -> None:
        folder = self._folder.path
        files: list[tuple[Path, str | None]] = [(folder / name, None) for name in OF_RUN]
        for attempt in self._folder.attempts():
            files += [(attempt / name, f"attempts/{attempt.name}") for name in OF_ATTEMPT]
        for pattern in OF_PROFILE:
            files += [(path, "profile") for path in sorted((folder / "profile").glob(pattern))]
        for path, place in files:
            if not path.exists() or path.stat().st_size == 0 or not self._folder.owns(path):
                continue
            changed_at = path.stat().st_mtime_ns
            if self._sent_files.get(path) != changed_at:
                if path.name == "dataset.json":
                    self._send_dataset(path)
                self._client.log_artifact(self.run_id, str(path), place)
                self._sent_files[path] = changed_at

    def _send_dataset(self, path: Path) -> None:
        facts = read_json(path)
        splits = cast("dict[str, dict[str, object]]", facts.get("splits", {}))
        tokens = {name: split.get("num_tokens") for name, split in splits.items()}
        about = json.dumps({**{key: facts.get(key) for key in DATASET_FACTS}, "tokens": tokens})
        fingerprint = str(facts.get("fingerprint", ""))
        dataset = Dataset(str(facts.get("name", "data")), fingerprint[:36], "lmtrain", source=about, profile=about)
        self._client.log_inputs(self.run_id, datasets=[DatasetInput(dataset)])
        self._tag({"lmtrain.data_fingerprint": fingerprint})

    def _tag(self, tags: Mapping[str, str]) -> None:
        rows = [RunTag(tracking_key(key), value[:MAXIMUM_VALUE_CHARACTERS]) for key, value in tags.items()]
        for part in _parts(rows, ENTRIES_A_CALL):
            self._client.log_batch(self.run_id, tags=part)


class Curves:
    """A run's curves in the store; `known` are those with points, `horizon` is plan.json's.

    A point of an earlier step than one before it in the log is the late score of an older checkpoint: always sent.
    """

    def __init__(self, client: MlflowClient, run_id: str, *, known: set[str], horizon: object) -> None:
        self._client, self._run_id, self._known = client, run_id, known
        planned = cast("dict[str, Any]", horizon) if isinstance(horizon, dict) else {}
        self._planned_steps, self._planned_tokens = (_amount(planned.get(name)) for name in ("steps", "tokens"))
        self._there: dict[str, set[int]] = {}  # the steps of each curve in the store
        self._read: dict[str, int] = {}  # the highest step of each curve read in the log
        self._held: dict[str, Metric] = {}  # of each curve the newest point left out
        self.newest_step = -1

    def send(self, points: Sequence[Point], *, goes_on: bool) -> dict[str, str]:
        """Send the missing points, and return those without a finite value as tags."""
        read = dict(self._read) if goes_on else {}
        newest: dict[str, int] = {}  # the highest step of each curve in the store and chosen here
        chosen: list[Metric] = []
        odd: dict[str, str] = {}
        for metric in (metric for point in points for metric in _metrics(point)):
            key, step = metric.key, metric.step
            there = self._steps_of(key)
            newest.setdefault(key, max(there, default=-1))
            is_late = step < read.get(key, newest[key] if goes_on else -1)
            read[key] = max(step, read.get(key, -1))
            if step in there or (step <= newest[key] and not is_late):
                continue
            if not math.isfinite(metric.value):
                odd[f"nonfinite.{key}"] = f"{metric.value} at step {step}"
            elif is_late or self._opens_part(key, step, newest[key]):
                chosen.append(metric)
                newest[key] = max(step, newest[key])
            else:
                self._held[key] = metric
        self._log(chosen)
        self._read = read
        over_steps = [step for key, step in read.items() if not key.startswith((BY_TOKENS, BY_THE_CLOCK))]
        self.newest_step = max([self.newest_step, *over_steps])
        return odd

    def send_ends(self) -> None:
        """Send the newest point of each curve, if it was left out."""
        self._log([one for one in self._held.values() if one.step > max(self._steps_of(one.key), default=-1)])

    def _opens_part(self, key: str, step: int, newest: int) -> bool:
        """Return whether a point is the first in one of about 2,000 parts of its curve.

        Without a planned length a part is as wide as a 1,320th of the curve so far.
        """
        planned = self._planned_tokens if key.startswith(BY_TOKENS) else self._planned_steps
        if planned is None or key.startswith(BY_THE_CLOCK) or step > planned:
            planned = 1.5 * step
        width = max(1, math.ceil(planned / (MOST_POINTS - FOR_ENDS)))
        return newest < 0 or step // width > newest // width

    def _steps_of(self, key: str) -> set[int]:
        if key not in self._there:
            history = self._client.get_metric_history(self._run_id, key) if key in self._known else []
            self._there[key] = {each.step for each in history}
        return self._there[key]

    def _log(self, metrics: Sequence[Metric]) -> None:
        for part in _parts(metrics, METRICS_A_CALL):
            self._client.log_batch(self._run_id, metrics=part)
            for metric in part:
                self._steps_of(metric.key).add(metric.step)


class LoggedModels:
    """A run's checkpoints as logged models; one whose checkpoint was removed is deleted. A call can be repeated."""

    def __init__(self, client: MlflowClient, run_id: str, experiment: str) -> None:
        self._client, self._run_id, self._experiment = client, run_id, experiment
        self._models: dict[str, str] | None = None  # ids by checkpoint name
        self._ranked: set[str] = set()

    def send(self, folder: Path, *, newest_step: int, again: bool = False) -> None:
        """Make the store's models those of a folder's checkpoints; points up to `newest_step` are in the store.

        `again` ranks the models once more whose points were not there.
        """
        present = {path.parent.name: path for path in sorted(folder.glob(f"step_*/{MANIFEST}"))}
        if self._models is None:
            if not present:
                return
            text = f"source_run_id = '{self._run_id}'"
            found = self._client.search_logged_models([self._experiment], filter_string=text)
            self._models = {str(model.name): str(model.model_id) for model in found}
        if again:
            self._ranked.clear()
        for name, path in present.items():
            facts = _facts(path)
            if name not in self._models and facts:
                self._models[name] = self._create(name, path.parent, facts)
            if facts and name in self._models and name not in self._ranked and int(facts["step"]) <= newest_step:
                self._rank(self._models[name], int(facts["step"]), facts.get("metrics", {}))
                self._ranked.add(name)
        for name in [name for name in self._models if name not in present]:
            self._client.delete_logged_model(self._models.pop(name))

    def _create(self, name: str, folder: Path, facts: dict[str, Any]) -> str:
        model = self._client.create_logged_model(
            self._experiment,
            name=name,
            source_run_id=self._run_id,
            tags={FOLDER_TAG: str(folder)},
            params={"step": str(facts["step"]), "tokens": str(facts["tokens"])},
            model_type=MODEL_TYPE,
        )
        model_id = str(model.model_id)
        self._client.log_outputs(self._run_id, [LoggedModelOutput(model_id, step=int(facts["step"]))])
        self._client.finalize_logged_model(model_id, "READY")
        return model_id

    def _rank(self, model_id: str, step: int, metrics: dict[str, float]) -> None:
        """Give a model its metrics: points that the run has already, with their own times, so that none is doubled."""
        for key in (tracking_key(key) for key in RANKED_BY if key in metrics):
            points = [each for each in self._client.get_metric_history(self._run_id, key) if each.step == step]
            for point in points[:1]:
                self._client.log_metric(self._run_id, key, point.value, point.timestamp, step, model_id=model_id)


def open_sweep(client: MlflowClient, store: Store, sweep: str, *, name: str = "") -> str:
    """Find or create the parent run of a sweep's trials, under its given name, and return its id."""
    return find_or_create(client, store, {SWEEP_TAG: sweep, "mlflow.source.type": "LOCAL"}, name=name or sweep)


def _metrics(point: Point) -> Iterator[Metric]:
    for value in curve_points(point):
        yield Metric(tracking_key(value.key), value.value, int(value.time * 1000), value.step)


def _origin_tags(folder: Path) -> dict[str, str]:
    git = read_json(folder / "git.json")
    tags = {
        "lmtrain.attempts": folder.name,
        "lmtrain.version": read_json(folder / "versions.json").get("lmtrain"),
        "lmtrain.host": read_json(folder / "environment.json").get("host"),
        "lmtrain.git_dirty": git.get("dirty"),
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.name": " ".join(_read(folder / "overrides.txt").split("\n")).strip() or "train.py",
    }
    return {key: str(value) for key, value in tags.items() if value is not None}


def _facts(manifest: Path) -> dict[str, Any] | None:
    """Return a checkpoint's facts, None if they cannot be read."""
    try:
        facts = foreign_json.read(manifest)
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and "step" in facts and "tokens" in facts else None


def _started_at(identity: dict[str, object]) -> float:
    created_at = identity.get("created_at")
    return created_at if isinstance(created_at, float) else time.time()


def _amount(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
