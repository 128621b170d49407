"""Optional packages: importing those that an option needs, and the command that installs a missing one."""

import importlib
import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from lmtrain.errors import EnvironmentProblem


def install_command(extra: str, *packages: str) -> str:
    """Return the command for some packages of an extra, by the names of their modules; all of it where none is one.

    The project itself is on no package index, so the command names the packages and not the extra.
    """
    from importlib.metadata import requires  # brings the e-mail package along: for a refusal alone

    of_extra = re.compile(rf"(.*?); (.*)extra == '{extra}'")
    found = (of_extra.fullmatch(need.replace('"', "'")) for need in requires("lmtrain") or ())
    needs = [match[1].strip() for match in found if match]
    wanted = [need for need in needs if _name(need) in map(_name, packages)] or needs
    return " ".join((_installer(), *map(shlex.quote, wanted)))


def require_package(use: str, *packages: str, extra: str, instead: str = "") -> None:
    """Refuse a use of packages that are not installed, with the command for them and what to use `instead`."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        other = f", or use {instead}" if instead else ""
        command = install_command(extra, *missing)
        raise EnvironmentProblem(f"{use} needs the package {' and '.join(missing)}: {command}{other}.")


def _name(requirement: str) -> str:
    """Return a package's name as a module has it: `lm-eval>=0.4` and `lm_eval` are one."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].replace("-", "_").lower()


def _installer() -> str:
    """Return this environment's installer: its pip, or uv, which needs none inside."""
    python = shlex.quote(sys.executable)
    # Not by find_spec: asked for pip, setuptools leaves distutils to Python for the rest of the process (3.11).
    has_pip = any((Path(folder) / "pip").is_dir() for folder in sys.path)
    return f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"


def optimizer_class(option: str, *, module: str, name: str) -> Any:
    """Import the class behind `optimizer=OPTION` from its package."""
    require_package(f"optimizer={option}", module.partition(".")[0], extra="optim", instead="optimizer=adamw")
    return getattr(importlib.import_module(module), name)


def has_compiler() -> bool:
    """Return whether this machine has a compiler for torch.compile on a CPU."""
    return any(map(shutil.which, ("c++", "g++", "clang++")))
