"""Replace small files whole or not at all: write aside in the same folder, fsync, rename."""

import errno
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import write_durably

CONTROL: Final = re.compile(rb"\\u00(?:0[0-8bcefBCEF]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])")


def storage_problem(path: Path, error: OSError) -> EnvironmentProblem:
    """Name an unwritable file, the cause, and the remedy."""
    fixes = {
        errno.ENOSPC: "free some space, or set run.root to a larger disk",
        errno.EDQUOT: "free some of your quota, or set run.root to another disk",
        errno.EROFS: "it is mounted read-only; set run.root to a folder that can be written",
        errno.EACCES: "give yourself write permission, or set run.root to another folder",
        errno.EPERM: "give yourself write permission, or set run.root to another folder",
    }
    fix = fixes.get(error.errno or 0, "set run.root to a folder that can be written")
    return EnvironmentProblem(f"{path} cannot be written: {error.strerror or error}; {fix}.")


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace the file at path by content; a private file is readable by its owner alone.

    Raises:
        EnvironmentProblem: The disk is full, read-only or not ours; the old file is then untouched.
    """
    try:
        write_durably(path, content, mode=0o600 if private else 0o666)
    except OSError as error:
        raise storage_problem(path, error) from error


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Replace the file at path by UTF-8 text; see write_bytes."""
    write_bytes(path, text.encode(), private=private)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Replace the file at path by one readable JSON object; see write_bytes."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, object]:
    """Return the JSON object in a file, or an empty one when there is none or it is not whole.

    Its text holds no control characters for a terminal: the file may be anybody's.
    """
    try:
        content: object = foreign_json.parse(CONTROL.sub(rb"\\ufffd", foreign_json.read_bytes(path)))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    except OSError as problem:
        reason = problem.strerror or problem
        raise EnvironmentProblem(f"{path} cannot be read: {reason}; restore it, or name another run.") from problem
    return cast("dict[str, object]", content) if isinstance(content, dict) else {}
