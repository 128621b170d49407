"""Open an MLflow store without a write outside its own folder, also from eight processes at once.

A run's folder may be anybody's, and the address in it a trap: it takes secrets of this environment along, and MLflow
sends the person's own credentials with every call. So a folder's address is used only if somebody typed its server
before; the hosts are kept in the person's own state folder.
"""

import contextlib
import os
import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking import atomic_files
from lmtrain.tracking.atomic_files import file_lock
from lmtrain.tracking.redaction import REFERENCE, redact_text

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

SCHEMES = ("sqlite:", "postgresql", "mysql", "mssql", "http:", "https:", "databricks")
SQLITE: Final = "sqlite:///"
LOCK_SECONDS = 90.0  # creating the tables of a new store takes 4 to 10 seconds, and others may be before us
VARIABLE: Final = "MLFLOW_TRACKING_URI"
# A scheme, a user and password, a host with its port: anything else is not an address of ours.
ADDRESS: Final = re.compile(
    r"(?P<scheme>[a-z+0-9]+)://(?:[^@/\\\s?#]*@)?(?P<host>[\w.-]+(?::\d+)?|\[[\da-f:]+\](?::\d+)?)(?:[/?].*)?"
)

# No telemetry, no minutes of retries inside a call, no progress bars; read by MLflow when it is imported.
KIND: Final = {"mlflow.experimentKind": "custom_model_development"}  # MLflow opens it under Model training
ENVIRONMENT: Mapping[str, str] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "GIT_PYTHON_REFRESH": "quiet",
}


@dataclass(frozen=True)
class Store:
    """Where the runs under root are tracked."""

    root: Path
    tracking_uri: str
    experiment: str


def default_uri(root: Path) -> str:
    """Return the address of the embedded store of a folder of runs."""
    return f"sqlite:///{root.absolute() / 'mlflow.db'}"


def artifacts_folder(root: Path, tracking_uri: str) -> Path:
    """Return the folder of a local store's files: next to its database."""
    folder = database_file(tracking_uri).parent if tracking_uri.startswith(SQLITE) else root.absolute()
    return folder / "mlflow-artifacts"


def database_file(tracking_uri: str) -> Path:
    """Return the file of an SQLite store's address."""
    return Path(tracking_uri.removeprefix(SQLITE).partition("?")[0]).absolute()


def check_uri(tracking_uri: str | None) -> None:
    """Refuse a store where MLflow cannot resume runs."""
    if tracking_uri is not None and not tracking_uri.startswith(SCHEMES):
        raise ConfigurationError(
            f"logger.tracking_uri must begin with one of {', '.join(SCHEMES)}, or be null (a file in run.root), "
            f"got {redact_text(tracking_uri)}."
        )


def open_client(store: Store) -> "MlflowClient":
    """Connect to a store, creating its tables if there are none; one process at a time does.

    Errors of MLflow and its database driver pass through.

    Raises:
        PermissionError: A local database is closed to writing; MLflow would try for a minute.
    """
    uri = store.tracking_uri
    if uri.startswith(SQLITE):
        if database_file(uri).exists():
            database_file(uri).open("r+b").close()
        # MLflow 3 makes folders of slashes behind "?", a password in their names.
        file, mark, query = uri.partition("?")
        uri = file + mark + query.replace("/", "%2F")
    os.environ.update(ENVIRONMENT)
    from mlflow.tracking import MlflowClient  # seconds of imports: only in a process of its own

    with store_lock(store):
        return MlflowClient(uri)


def store_lock(store: Store) -> AbstractContextManager[None]:
    """Hold a store while something is looked up and, if missing, created in it."""
    folder = artifacts_folder(store.root, store.tracking_uri).parent
    folder.mkdir(parents=True, exist_ok=True)
    return file_lock(folder / ".mlflow.lock", wait_seconds=LOCK_SECONDS)


def experiment_id(client: "MlflowClient", store: Store) -> str:
    """Find or create the experiment."""
    with store_lock(store):
        found = client.get_experiment_by_name(store.experiment)
        if found is None:
            has_own = store.tracking_uri.startswith(("http:", "https:", "databricks"))  # a server chooses the place
            place = None if has_own else artifacts_folder(store.root, store.tracking_uri).as_uri()
            return client.create_experiment(store.experiment, artifact_location=place, tags=KIND)
        if found.lifecycle_stage != "active":
            client.restore_experiment(found.experiment_id)
        for key, value in KIND.items():
            if key not in found.tags:
                client.set_experiment_tag(found.experiment_id, key, value)
        return found.experiment_id


def find_or_create(
    client: "MlflowClient", store: Store, tags: Mapping[str, str], *, name: str, started_at: float | None = None
) -> str:
    """Return the id of the run with the first of tags; it is created with all of them if there is none."""
    start = int((time.time() if started_at is None else started_at) * 1000)
    experiment = experiment_id(client, store)
    key, value = next(iter(tags.items()))
    with store_lock(store):
        found = client.search_runs([experiment], f"tags.`{key}` = '{value}'", max_results=1)
        if found:
            return found[0].info.run_id
        return client.create_run(experiment, start_time=start, tags=dict(tags), run_name=name).info.run_id


def remember_server(address: str) -> None:
    """Note the server of a typed address; without a place to write, it is not noted."""
    server = _server_of(address)
    if server is None or server in (known := _noted()):
        return
    with contextlib.suppress(OSError, EnvironmentProblem):
        _file().parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_text(_file(), "".join(f"{one}\n" for one in sorted({*known, server})), private=True)


def is_known(address: str, *, resolved: str, root: Path) -> bool:
    """Return whether a run folder's address may be used: `resolved` has this environment's values in it.

    A local database may be one that exists, or the one of the runs in `root`.
    """
    if address.startswith(SQLITE):
        return address == default_uri(root) or database_file(address).is_file()
    if REFERENCE.fullmatch(address) or address.startswith("databricks"):  # the environment says where to
        return True
    return _server_of(address) == _server_of(resolved) and is_typed_server(address)


def is_typed_server(address: str) -> bool:
    """Return whether somebody typed an address's server here before, or the environment names it."""
    server = _server_of(address)
    return server is not None and server in {*_noted(), _server_of(os.environ.get(VARIABLE, ""))}


def _server_of(address: str) -> str | None:
    """Return scheme and host of an address, None if it has none that is plain."""
    found = ADDRESS.fullmatch(address.strip())
    return f"{found['scheme']}://{found['host']}".lower() if found else None


def _file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "lmtrain" / "tracking_servers"


def _noted() -> set[str]:
    try:
        return set(_file().read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return set()
