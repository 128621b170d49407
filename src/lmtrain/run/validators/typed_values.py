"""The typed paths of a source's texts."""

import glob
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import DataError, suggest_path

SOURCE_PATHS: Final = ("source.paths", "source.validation_paths")


def require_paths(paths: Any, *, key: str) -> None:
    """Look at paths of this machine's disks; patterns and addresses are left out.

    Raises:
        DataError: Nothing is at one of them.
    """
    for path in [paths] if isinstance(paths, str) else paths if isinstance(paths, list) else ():
        is_elsewhere = "://" in str(path) or glob.has_magic(str(path))
        here = Path(str(path)).expanduser()
        if not is_elsewhere and not here.exists():
            raise DataError(f"{key}: {path} does not exist (looked from {Path.cwd()}).{suggest_path(here)}")
