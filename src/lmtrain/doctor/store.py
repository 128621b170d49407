"""Whether the MLflow store of a config can be reached, or its database written; without importing MLflow."""

import os
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from lmtrain.doctor.disk import nearest_folder
from lmtrain.doctor.finding import Finding, graded
from lmtrain.tracking.redacting.redaction import redact_text

CONNECT_SECONDS: Final = 3.0
PORTS: Final = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}


def tracking_store(uri: str) -> Finding:
    """Try a store: a server answers on its port, a database file can be written."""
    if uri.startswith("sqlite:"):
        return database(Path(uri.removeprefix("sqlite:///").partition("?")[0]))
    parts = urlsplit(uri)
    port = parts.port or PORTS.get(parts.scheme.partition("+")[0])
    if parts.hostname is None or port is None:
        return Finding(name="MLflow", state="ok", found=f"{redact_text(uri)}, not tried")
    reachable = answers(parts.hostname, port)
    return graded(
        "MLflow",
        f"{redact_text(uri)} {'answers' if reachable else 'does not answer'}",
        is_bad=not reachable,
        fix="start the server or correct logger.tracking_uri; with logger=none metrics stay in the run's folder, and "
        "`lmtrain sync` sends them later",
    )


def database(path: Path) -> Finding:
    """Return whether a database file, or the folder where it will be made, can be written."""
    target = path if path.exists() else nearest_folder(path.absolute().parent)
    writable = os.access(target, os.W_OK)
    return graded(
        "MLflow",
        f"{path} {'can' if writable else 'cannot'} be written",
        is_bad=not writable,
        fix="give yourself write permission, or set logger.tracking_uri",
    )


def answers(host: str, port: int) -> bool:
    """Return whether something listens there."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False
