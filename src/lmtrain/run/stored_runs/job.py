"""One training job as its ranks receive it: the composed config and its command line."""

import hashlib
import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lmtrain.errors import DataError
from lmtrain.report.kept_flags import kept_flags
from lmtrain.run.run_config import RunConfig, read_config
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import read_json, write_text
from lmtrain.tracking.redaction import redact, redact_override, resolve_references
from lmtrain.tracking.run_folder import RunFolder

# Where and how a run is executed, without effect on its results: not part of its name.
OF_TRAINER = ("trainer.devices", "trainer.num_nodes", "trainer.cpu_threads", "trainer.lighthouse")
EXECUTION_KEYS = ("run.", *OF_TRAINER, "resume", "logger")
# Modules that moved since a run's config was saved: the old path's beginning -> today's.
MOVED_TARGETS = {
    "lmtrain.composition.": "lmtrain.run.",
    "data_pipelines.stages.repetition.": "data_pipelines.stages.quality.",
    "lmtrain.tracking.csv_tracking.": "lmtrain.tracking.trackers.",
    "lmtrain.tracking.mlflow_tracking.": "lmtrain.tracking.mlflow.tracking.",
    "lmtrain.tracking.no_tracking.": "lmtrain.tracking.following.",
    "lmtrain.tracking.tensorboard_tracking.": "lmtrain.tracking.trackers.",
    "lmtrain.tracking.trackio_tracking.": "lmtrain.tracking.trackers.",
    "lmtrain.tracking.wandb_tracking.": "lmtrain.tracking.trackers.",
    "lmtrain.training.profiling.memory_trace.": "lmtrain.training.profilers.",
    "lmtrain.training.profiling.off.": "lmtrain.training.profilers.",
    "lmtrain.training.profiling.torch_trace.": "lmtrain.training.profilers.",
    "lmtrain.optim.range_test.": "lmtrain.optim.schedules.",
    "lmtrain.optim.adafactor.": "lmtrain.optim.torch_optimizers.",
    "lmtrain.optim.adagrad.": "lmtrain.optim.torch_optimizers.",
    "lmtrain.optim.adamw_8bit.": "lmtrain.optim.package_optimizers.",
    "lmtrain.optim.lion.": "lmtrain.optim.package_optimizers.",
    "lmtrain.optim.rmsprop.": "lmtrain.optim.torch_optimizers.",
    "lmtrain.optim.schedule_free.": "lmtrain.optim.package_optimizers.",
    "lmtrain.optim.sgd.": "lmtrain.optim.torch_optimizers.",
}
# Strategies with code of their own before they were shorthands of one mesh.
SHORTHANDS = {
    f"lmtrain.parallel.{option}.{option}": {"_target_": "lmtrain.parallel.mesh.mesh", "option": option}
    for option in ("fsdp", "hsdp", "fsdp_tensor", "tensor", "context", "pipeline")
}
HANDED_OVER = "LMTRAIN_JOB"  # a variable of the ranks alone: no file and no command line has the secrets


@dataclass(frozen=True, kw_only=True)
class Job:
    """A checked config with its origin; `sweep` names the sweep of a trial, None for a single run.

    `began` is the time of the command, in this machine's time.monotonic; `program` is the beginning of the command
    line, `config_dir` the user's folder of options.
    """

    config: RunConfig
    overrides: list[str]
    name: str
    root: str
    sweep: str | None = None
    began: float = field(default_factory=time.monotonic)
    program: str = "python train.py"
    config_dir: str | None = None

    @property
    def folder(self) -> Path:
        """Return the run's folder."""
        return Path(self.root) / self.name

    @property
    def attempt(self) -> int:
        """Return the number of this start of its run, from 1."""
        return max(1, len(RunFolder(self.folder).attempts()))

    @property
    def kept_flags(self) -> list[str]:
        """Return the flags that another command of this run needs too."""
        return kept_flags(config_dir=self.config_dir, allowed=self.config.allowed)

    def begun_now(self) -> "Job":
        """Return the job with this moment as its beginning."""
        return replace(self, began=time.monotonic())

    def save(self, path: Path) -> None:
        """Write the job without its secrets, readable by its owner only; a rank gets them by `handed_over`."""
        kept = {
            **self._plain(),
            "config": redact(self.config.values),
            "overrides": [*map(redact_override, self.overrides)],
        }
        write_text(path, json.dumps(kept, indent=1), private=True)

    def handed_over(self) -> dict[str, str]:
        """Return the environment variables that give a rank the whole job; none if the file has everything."""
        values = self.config.values
        has_secrets = json.dumps(redact(values)) != json.dumps(values)  # tuples and lists are alike
        return {HANDED_OVER: json.dumps(self._plain())} if has_secrets else {}

    def _plain(self) -> dict[str, Any]:
        others = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {**others, "config": self.config.values, "allowed_targets": [*self.config.allowed]}


@dataclass(frozen=True, kw_only=True)
class StoredJob:
    """A job from a run's folder, possibly another person's: its config is data, checked in parts."""

    config: dict[str, Any]
    name: str


def load_job(path: Path) -> StoredJob:
    """Read a job written by `save`; secrets are filled in from this environment, if it has them."""
    stored = _read_job(path)
    return StoredJob(config=stored["config"], name=stored["name"])


def _read_job(path: Path) -> dict[str, Any]:
    stored = _with_current_targets(resolve_references(read_json(path)))
    if not isinstance(stored.get("config"), dict) or not {"overrides", "name", "root"} <= stored.keys():
        raise DataError(f"{path} is not the job of a run; restore it, or use another run.")
    return stored


def _with_current_targets(value: Any) -> Any:
    """Return a saved config's values with each `_target_` under its present path."""
    if isinstance(value, list):
        return [_with_current_targets(each) for each in value]
    if not isinstance(value, dict):
        return value
    current = {name: _with_current_targets(each) for name, each in value.items()}
    if not isinstance(target := current.get("_target_"), str):
        return current
    for old, new in MOVED_TARGETS.items():
        if target.startswith(old):
            target = new + target.removeprefix(old)
    return {**current, "_target_": target, **SHORTHANDS.get(target, {})}


def job_of_rank(path: Path) -> Job:
    """Return the job of this rank, from its parent or else from the file."""
    whole = os.environ.get(HANDED_OVER)
    stored = foreign_json.parse(whole) if whole else _read_job(path)
    others: dict[str, Any] = {entry.name: stored[entry.name] for entry in fields(Job) if entry.name in stored}
    others["config"] = read_config(stored["config"], allowed=stored.get("allowed_targets", ()))
    return Job(**others)


def default_name(model: str, overrides: Sequence[str], *, swept: Collection[str] = ()) -> str:
    """Name a run by its model option and its overrides: the same command gives the same name.

    A key of execution is not part of the name, unless it is `swept`, and so distinguishes the trials of a sweep.
    """
    telling = sorted(
        word
        for word in overrides
        if not word.lstrip("+").startswith(EXECUTION_KEYS) or word.lstrip("+").partition("=")[0] in swept
    )
    return f"{model}-{short_hash(telling)}" if telling else model


def short_hash(value: Any) -> str:
    """Return eight hexadecimal digits of a JSON value's sha256."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the hash compared by all ranks before training."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the keys that differ between two flat configs, each with its old and its new value; None without."""
    both = {key: (old.get(key), new.get(key)) for key in {**new, **old}}
    return {key: values for key, values in both.items() if values[0] != values[1]}


def flatten(node: Any, prefix: str = "") -> dict[str, str | int | float | None]:
    """Return the leaves of a config node by their dotted names; lists become text."""
    if isinstance(node, dict):
        below = ((f"{prefix}.{name}".lstrip("."), value) for name, value in node.items())
        return {key: leaf for name, value in below for key, leaf in flatten(value, name).items()}
    return {prefix: json.dumps(node) if isinstance(node, (list, tuple)) else node}
