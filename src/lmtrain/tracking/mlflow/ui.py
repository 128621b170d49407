"""Open the runs in a browser: `lmtrain ui`, MLflow's own server on the embedded store, for this machine only."""

import os
import shlex
import sys
from pathlib import Path
from typing import Final

from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking.mlflow.client import ENVIRONMENT, artifacts_folder, database_file, default_uri
from lmtrain.tracking.ports import in_web_address, is_loopback, require_free, require_port

RUNS_PAGE: Final = "#/experiments?workflowType=machine_learning"  # MLflow's start page is about agents


def ui_command(root: Path, *, host: str = "127.0.0.1", port: int = 5000) -> list[str]:
    """Return the command for serving the store of a folder of runs."""
    require_port(port)
    if not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} is reached by others, and MLflow's server asks nobody for a key; leave it out, and type on "
            f"the other machine: ssh -N -L {port}:127.0.0.1:{port} USER@THIS_MACHINE."
        )
    uri = default_uri(root)
    if not database_file(uri).exists():
        raise EnvironmentProblem(
            f"{root} has no mlflow.db: nothing was tracked there yet; train first, or set run.root."
        )
    require_free(host, port)
    command = python_command("-m", "mlflow", "server", "--backend-store-uri", uri, "--workers", "1")
    return [
        *command,
        "--artifacts-destination",
        artifacts_folder(root, uri).as_uri(),
        "--host",
        host,
        "--port",
        str(port),
        # By itself MLflow answers private networks too, as 10.*: a name of anyone's, 10.example.org, is one of these.
        "--allowed-hosts",
        ",".join(f"{name}:{port}" for name in dict.fromkeys((in_web_address(host), "127.0.0.1", "localhost"))),
        "--uvicorn-opts",
        # Without a level its last line is the address of MLflow's own start page. Without a folder it imports from the
        # working one, of the runs.
        f"--log-level warning --app-dir {shlex.quote(sys.prefix)}",
    ]


def ui(root: Path, *, host: str = "127.0.0.1", port: int = 5000) -> None:
    """Become the server of a folder of runs; does not return. Every user of this machine may change the runs."""
    command = ui_command(root, host=host, port=port)
    sys.stdout.write(f"The runs in {root} are at http://{in_web_address(host)}:{port}/{RUNS_PAGE} (end with Ctrl-C)\n")
    sys.stdout.flush()
    environment = {**python_environment(), **ENVIRONMENT}
    os.chdir(root)  # the server's own files stay with the runs
    os.execve(command[0], command, environment)  # noqa: S606
