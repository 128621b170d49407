"""The tracking servers typed by this person: a run's folder may be anybody's, and its address a trap.

An address takes secrets of this environment along, and MLflow sends the person's own credentials with every call. So
a folder's address is used where somebody typed its server before; kept are hosts, in the person's own state folder.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking import atomic_files
from lmtrain.tracking.mlflow.client import SQLITE, database_file, default_uri
from lmtrain.tracking.redacting.secret_values import REFERENCE

VARIABLE: Final = "MLFLOW_TRACKING_URI"
# A scheme, a user and password, a host with its port: anything else is no address of ours.
ADDRESS: Final = re.compile(
    r"(?P<scheme>[a-z+0-9]+)://(?:[^@/\\\s?#]*@)?(?P<host>[\w.-]+(?::\d+)?|\[[\da-f:]+\](?::\d+)?)(?:[/?].*)?"
)


def server_of(address: str) -> str | None:
    """Return scheme and host of an address, None where it has none that is plain."""
    found = ADDRESS.fullmatch(address.strip())
    return f"{found['scheme']}://{found['host']}".lower() if found else None


def remember_server(address: str) -> None:
    """Note the server of a typed address; without a place to write, it is not noted."""
    server = server_of(address)
    if server is None or server in (known := _noted()):
        return
    with contextlib.suppress(OSError, EnvironmentProblem):
        _file().parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_text(_file(), "".join(f"{one}\n" for one in sorted({*known, server})), private=True)


def is_known(address: str, *, resolved: str, root: Path) -> bool:
    """Tell whether a run folder's address may be used: `resolved` is it with this environment's values.

    A local database is one that is there, or the one beside the runs in `root`.
    """
    if address.startswith(SQLITE):
        return address == default_uri(root) or database_file(address).is_file()
    if REFERENCE.fullmatch(address) or address.startswith("databricks"):  # the environment says where to
        return True
    return server_of(address) == server_of(resolved) and is_typed_server(address)


def is_typed_server(address: str) -> bool:
    """Tell whether somebody typed an address's server here before, or the environment names it."""
    server = server_of(address)
    return server is not None and server in {*_noted(), server_of(os.environ.get(VARIABLE, ""))}


def _file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "lmtrain" / "tracking_servers"


def _noted() -> set[str]:
    try:
        return set(_file().read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return set()
