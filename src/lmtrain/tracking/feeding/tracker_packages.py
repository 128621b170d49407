"""The packages of other trackers, from extras."""

import importlib.util

from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import install_command


def require_package(package: str, *, logger: str) -> None:
    """Look for the package of an option of `logger`, whose extra has its name.

    Raises:
        EnvironmentProblem: It is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise EnvironmentProblem(
            f"logger={logger} needs the package {package}: {install_command(package)}, or use logger=csv."
        )
