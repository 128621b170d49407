"""Folders made for a person: never over an existing one, never half written."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmtrain.errors import ConfigurationError
from lmtrain.storage.hashed_folder import aside_of, write_atomically


def require_free(path: Path, *, name: str) -> None:
    """Refuse a taken place; `name` is its word on the command line.

    Raises:
        ConfigurationError: Something is there.
    """
    if path.exists():
        raise ConfigurationError(
            f"{name}={path} is there already, and nothing is overwritten; name another, or move it."
        )


def make_folder(final: Path, *, facts: dict[str, Any], write: Callable[[Path], object]) -> None:
    """Let `write` fill a folder, afterwards visible as `final` with a manifest of its files, whole or absent.

    Raises:
        ConfigurationError: The name is taken.
        EnvironmentProblem: It cannot be written.
    """
    require_free(final, name="OUT")
    try:
        write_atomically(final, facts=facts, write=write)
    except BaseException:
        shutil.rmtree(aside_of(final), ignore_errors=True)
        raise
