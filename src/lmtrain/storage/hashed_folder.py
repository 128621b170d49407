"""Folders that are whole or absent: filled aside, listed with sizes and sha256, fsynced, renamed.

The manifest makes silent damage visible: torch loads a flipped bit, and Lightning's own writer leaves a truncated file
under the final name when a disk fills (torch 2.13, lightning 2.6.6).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmtrain.errors import EnvironmentProblem

MANIFEST = "manifest.json"


def aside_of(final: Path) -> Path:
    """Return the hidden sibling in which a folder is filled before it is renamed."""
    return final.with_name(f".{final.name}.tmp")


def write_atomically(final: Path, *, facts: dict[str, Any], write: Callable[[Path], object]) -> None:
    """Let `write` fill a folder, then make it appear under its final name with a manifest, all or nothing.

    Raises:
        EnvironmentProblem: The folder cannot be written: full, read-only, or gone.
    """
    aside = aside_of(final)
    try:
        start_aside(aside)
        write(aside)
        commit(aside, final, facts=facts)
    except (OSError, RuntimeError) as problem:  # torch turns ENOSPC into a RuntimeError
        shutil.rmtree(aside, ignore_errors=True)
        msg = f"{final} could not be written: {problem}. Free space or make the folder writable; nothing older was lost."
        raise EnvironmentProblem(msg) from problem


def start_aside(aside: Path) -> None:
    """Make the hidden folder, empty."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)


def commit(aside: Path, final: Path, *, facts: dict[str, Any]) -> None:
    """Add the manifest, fsync everything, and rename the folder to its final name, replacing an older one."""
    files = sorted(path for path in aside.rglob("*") if path.is_file())
    listed = {str(path.relative_to(aside)): [path.stat().st_size, file_sha256(path)] for path in files}
    manifest = aside / MANIFEST
    manifest.write_text(json.dumps({**facts, "files": listed}, indent=1))
    for path in [*files, manifest, *{path.parent for path in files}, aside]:
        fsync(path)
    if final.exists():
        shutil.rmtree(final)
    aside.rename(final)
    fsync(final.parent)


def damage(folder: Path) -> str | None:
    """Say what is wrong with a folder's files (missing, truncated, changed bytes), or None when all is well."""
    try:
        files: dict[str, tuple[int, str]] = json.loads((folder / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError) as problem:
        return f"{MANIFEST} cannot be read ({problem})"
    problems = (_file_damage(folder / name, *expected) for name, expected in files.items())
    return next((problem for problem in problems if problem), None)


def require_whole(folder: Path) -> None:
    """Refuse a folder that is not exactly what was written.

    Raises:
        EnvironmentProblem: A file is missing, truncated or changed.
    """
    if problem := damage(folder):
        msg = f"{folder} is damaged: {problem}. Use an older checkpoint with resume=PATH."
        raise EnvironmentProblem(msg)


def file_sha256(path: Path) -> str:
    """Return a file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Wait until a file's or folder's bytes are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_damage(file: Path, num_bytes: int, sha256: str) -> str | None:
    if not file.is_file():
        return f"{file.name} is missing"
    if file.stat().st_size != num_bytes:
        return f"{file.name} has {file.stat().st_size} bytes instead of {num_bytes}"
    if file_sha256(file) != sha256:
        return f"{file.name} has changed since it was written (sha256 differs)"
    return None
