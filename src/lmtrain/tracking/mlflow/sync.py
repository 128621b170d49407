"""Send a run's missing points to its tracking server, once, from the run folder alone: `lmtrain sync runs/NAME`."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking.mlflow.client import Store, check_uri, default_uri, is_known, open_client, remember_server
from lmtrain.tracking.mlflow.sink import follow, read_state
from lmtrain.tracking.redaction import REDACTED, REFERENCE, redact_text, resolve_references
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.status import Status, Tracked, read_status, settled_status, write_status

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


SYNC_SECONDS = 30.0


def sync(
    run_folder: Path,
    *,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    seconds: float = SYNC_SECONDS,
) -> Tracked:
    """Replay a run into MLflow; points already there are not sent again. None means where the run was tracked before.

    Raises:
        ConfigurationError: run_folder is not a run, names a store that nobody here typed, or lacks its password.
        EnvironmentProblem: The server still does not answer after about `seconds`.
    """
    store = tracked_store(run_folder, tracking_uri=tracking_uri, experiment=experiment)
    if tracking_uri:
        remember_server(tracking_uri)
    folder = RunFolder(run_folder)
    status = _settled_status(folder)
    is_complete = follow(
        folder.path,
        tracking_uri=store.tracking_uri,
        experiment=store.experiment,
        last_status=lambda: status,
        drain_seconds=seconds,
    )
    state = read_state(folder.path)
    if not is_complete:
        raise EnvironmentProblem(f"MLflow at {redact_text(store.tracking_uri)} failed: {state.error}.")
    return Tracked(run_id=state.run_id, is_complete=True)


def tracked_store(run_folder: Path, *, tracking_uri: str | None = None, experiment: str | None = None) -> Store:
    """Return the store that a run was tracked in, or the one typed.

    Raises:
        ConfigurationError: run_folder is not a run, names a store that nobody here typed, or lacks its password.
    """
    folder = RunFolder(run_folder)
    identity = folder.read_identity()
    if not identity:
        raise ConfigurationError(f"{run_folder} is not a run folder: it has no run.json; give the path of a run.")
    check_uri(tracking_uri)
    stored = identity.get("mlflow")
    stored = cast("dict[str, object]", stored) if isinstance(stored, dict) else {}
    uri = tracking_uri or _stored_address(folder, stored.get("tracking_uri"))
    name = experiment or str(resolve_references(stored.get("experiment") or "lmtrain"))
    for key, value in {"tracking_uri": uri, "experiment": name}.items():
        _require_known(value, key=f"logger.{key}")
    return Store(folder.known_root(), uri, name)


def _stored_address(folder: RunFolder, stored: object) -> str:
    """Return a run's own store; the folder may be anybody's."""
    root = folder.known_root()
    if not isinstance(stored, str):
        return default_uri(root)
    resolved = str(resolve_references(stored))
    _require_known(resolved, key="logger.tracking_uri")
    check_uri(resolved)
    if not is_known(stored, resolved=resolved, root=root):
        raise ConfigurationError(
            f"{folder.path} names the store {redact_text(stored)}, typed by nobody here before; if it is yours, "
            f"type it once: lmtrain sync {folder.path} --tracking-uri ADDRESS."
        )
    return resolved


def _require_known(value: str, *, key: str) -> None:
    if missing := REFERENCE.search(value):
        raise ConfigurationError(f"{value}: {missing['name']} is not set here; set it, or give {key} again.")
    if REDACTED in value:
        raise ConfigurationError(f"{value}: its password is not kept in the run folder; give {key} again.")


def _settled_status(folder: RunFolder) -> Status:
    """Return the run's state, and write it where a killed run still reads RUNNING: it ended with its last event."""
    stored, status = read_status(folder.path), settled_status(folder.path) or Status("KILLED")
    if stored is None or stored.status != status.status:
        ended_at = max((file.stat().st_mtime for file in folder.path.glob("events/rank*.jsonl")), default=None)
        ended = Status(status.status, status.exit_code, step=status.step, tokens=status.tokens, time=ended_at)
        write_status(folder.path, ended)
    return read_status(folder.path) or status


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A version of a name, and the place of its files."""

    name: str
    version: str
    source: str


class ModelRegistry:
    """The registry of a run's store; the run is brought up to date there at once, before anything is exported.

    Raises:
        ConfigurationError: A name that cannot be one, or a store that nobody here typed.
        EnvironmentProblem: The store does not answer.
    """

    def __init__(self, run_folder: Path, name: str, *, tracking_uri: str | None = None) -> None:
        if not name.strip() or "/" in name or ":" in name:
            raise ConfigurationError(f"--register: must be a name without '/' and ':', got {name!r}.")
        self.name, self._folder = name, run_folder.absolute()
        self._store = tracked_store(run_folder, tracking_uri=tracking_uri)
        status, state = read_status(self._folder), read_state(self._folder)
        is_sent_by_itself = status is not None and status.status == "RUNNING" and state.phase == "sending"
        self._run_id = state.run_id if is_sent_by_itself else sync(self._folder, tracking_uri=tracking_uri).run_id

    def register(self, exported: Path, *, step: int, form: str, facts: Mapping[str, object]) -> Registered:
        """Register an exported folder or file as the next version, with `facts` as its tags.

        Raises:
            EnvironmentProblem: The store does not answer; the export stays.
        """
        tags = {"lmtrain.form": form, "lmtrain.folder": str(self._folder), "lmtrain.checkpoint": f"step_{step:08d}"}
        tags |= {f"lmtrain.{key}": str(value) for key, value in facts.items() if value is not None}
        about = f"step {step:,} of {self._folder.name}, exported as {form}"
        try:
            client = open_client(self._store)
            if not client.search_registered_models(f"name = '{self.name}'"):
                client.create_registered_model(self.name)
            source = self._source(client, exported, step=step)
            version = client.create_model_version(self.name, source, run_id=self._run_id, tags=tags, description=about)
        except Exception as error:
            reason = redact_text(str(error)).strip().splitlines()[:1]
            raise EnvironmentProblem(f"{exported} is written and not registered: {' '.join(reason)}.") from error
        return Registered(name=self.name, version=str(version.version), source=source)

    def _source(self, client: "MlflowClient", exported: Path, *, step: int) -> str:
        """Return the address of the files, a copy of them among the run's artifacts where there is a server."""
        if self._store.artifacts_uri is not None:
            return exported.absolute().as_uri()
        place = f"exports/step_{step:08d}/{int(time.time())}-{exported.name}"
        (client.log_artifacts if exported.is_dir() else client.log_artifact)(self._run_id or "", str(exported), place)
        from mlflow.store.artifact.runs_artifact_repo import RunsArtifactRepository

        return RunsArtifactRepository.get_underlying_uri(f"runs:/{self._run_id}/{place}", self._store.tracking_uri)
