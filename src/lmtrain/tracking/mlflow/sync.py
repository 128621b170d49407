"""Send a run's missing points to its tracking server, once, from the run folder alone: `lmtrain sync runs/NAME`."""

from pathlib import Path
from typing import cast

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking.mlflow.client import Store, check_uri, default_uri, is_known, remember_server
from lmtrain.tracking.mlflow.sink import follow, read_state
from lmtrain.tracking.redaction import REDACTED, REFERENCE, redact_text, resolve_references
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.status import Status, read_status, settled_status, write_status

SYNC_SECONDS = 30.0


def sync(
    run_folder: Path,
    *,
    tracking_uri: str | None = None,
    seconds: float = SYNC_SECONDS,
) -> str | None:
    """Replay a run into MLflow; points already there are not sent again. Return its id there.

    `tracking_uri` None is where the run was tracked before.

    Raises:
        ConfigurationError: run_folder is not a run, names a store that nobody here typed, or lacks its password.
        EnvironmentProblem: The server still does not answer after about `seconds`.
    """
    store = tracked_store(run_folder, tracking_uri=tracking_uri)
    if tracking_uri:
        remember_server(tracking_uri)
    folder = RunFolder(run_folder)
    status = _settled_status(folder)
    is_complete = follow(folder.path, store, last_status=lambda: status, drain_seconds=seconds)
    state = read_state(folder.path)
    if not is_complete:
        raise EnvironmentProblem(f"MLflow at {redact_text(store.tracking_uri)} failed: {state.error}.")
    return state.run_id


def tracked_store(run_folder: Path, *, tracking_uri: str | None = None) -> Store:
    """Return the store that a run was tracked in, or the one typed."""
    folder = RunFolder(run_folder)
    identity = folder.read_identity()
    if not identity:
        raise ConfigurationError(f"{run_folder} is not a run folder: it has no run.json; give the path of a run.")
    check_uri(tracking_uri)
    stored = identity.get("mlflow")
    stored = cast("dict[str, object]", stored) if isinstance(stored, dict) else {}
    uri = tracking_uri or _stored_address(folder, stored.get("tracking_uri"))
    name = str(resolve_references(stored.get("experiment") or "lmtrain"))
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
