"""The needs of optimizers from other packages: the package, from the extra `optim`, and for some a compiler."""

import importlib
import importlib.util
import shutil
from typing import Any

from lmtrain.errors import EnvironmentProblem
from lmtrain.missing_package import install_command


def optimizer_class(option: str, *, module: str, name: str) -> Any:
    """Import the class behind `optimizer=OPTION` from its package.

    Raises:
        EnvironmentProblem: The package is not installed.
    """
    package = module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        command = install_command("optim", package)
        msg = f"optimizer={option} needs the package {package}: {command}, or use optimizer=adamw."
        raise EnvironmentProblem(msg)
    return getattr(importlib.import_module(module), name)


def has_compiler() -> bool:
    """Return whether this machine has a compiler for torch.compile on a CPU."""
    return any(map(shutil.which, ("c++", "g++", "clang++")))
