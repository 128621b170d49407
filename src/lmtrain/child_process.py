"""Start Python child processes that import nothing from the working folder.

`python -m` and `python -c` put the working folder first on the import path, so that a `json.py` in somebody else's
folder would run in every child. Every Python child of lmtrain starts with the command and the environment given here.
"""

import os
import sys
from itertools import takewhile
from pathlib import Path

SAFE_PATH = "PYTHONSAFEPATH"


def python_command(*arguments: str) -> list[str]:
    """Return the command of a Python child, with the working folder left out of its import path."""
    return [sys.executable, "-P", *arguments]


def python_environment() -> dict[str, str]:
    """Return this process's environment for a Python child, safe for that child's own children too.

    A user's own modules stay importable where their folder was given: by PYTHONPATH, by running a script in it, or by
    code that put it first on `sys.path`. The working folder alone, which -m and -c add, does not count.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    explicit = [str(Path(folder).absolute()) for folder in [*_script_folder(), *given] if folder]
    ahead = [str(Path(folder).absolute()) for folder in takewhile(_is_ahead_of_library, sys.path) if folder]
    working = str(Path.cwd())
    folders = dict.fromkeys([*(folder for folder in ahead if folder in explicit or folder != working), *explicit])
    return {**os.environ, SAFE_PATH: "1", "PYTHONPATH": os.pathsep.join(folders)}


def protect_children() -> None:
    """Protect the children that libraries start from the working folder's modules as well."""
    os.environ.update(python_environment())


def _is_ahead_of_library(folder: str) -> bool:
    return not folder.endswith(".zip") and folder != str(Path(os.__file__).parent)


def _script_folder() -> list[str]:
    """Return the folder that Python put on the path for a script; [] after -m, -c and -P."""
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if sys.flags.safe_path or script is None or getattr(main, "__spec__", None) is not None:
        return []
    return [str(Path(script).resolve().parent)]
