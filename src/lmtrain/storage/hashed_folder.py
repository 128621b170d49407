"""Folders, whole or absent: filled aside, listed with sizes and sha256, fsynced, renamed.

The manifest makes silent damage visible: torch loads a flipped bit, and Lightning's own writer leaves a truncated file
under the final name when a disk fills (torch 2.13, lightning 2.6.6).
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import fsync

MANIFEST = "manifest.json"
TORN = "unexpected pos"  # in the words of torch's zip writer
OWN_SHA256 = "sha256"  # of the manifest's other entries, so that a changed fact is seen too


def aside_of(final: Path) -> Path:
    """Return the hidden sibling where a folder is filled before it is renamed."""
    return final.with_name(f".{final.name}.tmp")


def write_atomically(final: Path, *, facts: dict[str, Any], write: Callable[[Path], object]) -> None:
    """Let `write` fill a folder, then make it appear under its final name with a manifest, all or nothing."""
    aside = aside_of(final)
    try:
        start_aside(aside)
        write(aside)
        commit(aside, final, facts=facts)
    except BaseException as problem:
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(problem, (OSError, RuntimeError)):  # torch turns ENOSPC into a RuntimeError
            raise not_written(final, str(problem)) from problem
        raise


def not_written(final: Path, problem: str) -> EnvironmentProblem:
    """Name an unwritable folder, the cause, and the remedy."""
    cause = "the disk took fewer bytes than it was given, as a full one does" if TORN in problem else problem
    fix = "Free space or make the folder writable; nothing older was lost."
    return EnvironmentProblem(f"{final} could not be written: {cause}. {fix}")


def start_aside(aside: Path) -> None:
    """Make the hidden folder, empty."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)


def commit(aside: Path, final: Path, *, facts: dict[str, Any]) -> None:
    """Add the manifest, fsync everything, and rename the folder to its final name; an older one goes only then."""
    files = sorted(path for path in aside.rglob("*") if path.is_file())
    listed = {str(path.relative_to(aside)): [path.stat().st_size, file_sha256(path)] for path in files}
    manifest = aside / MANIFEST
    content = {**facts, "files": listed}
    manifest.write_text(json.dumps({**content, OWN_SHA256: _json_sha256(content)}, indent=1))
    for path in [*files, manifest, *{path.parent for path in files}, aside]:
        fsync(path)
    _take_name(aside, final)
    fsync(final.parent)


def clear_leftovers(folder: Path) -> None:
    """Delete a killed writer's leftovers in a folder; put back a folder only moved out of the way."""
    for older in folder.glob(".*.older"):
        final = older.with_name(older.name.removeprefix(".").removesuffix(".older"))
        if not final.exists():
            older.rename(final)
    for pattern in (".*.tmp", ".*.older", ".*.deleting"):
        for left in folder.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def damage(folder: Path) -> str | None:
    """Describe the first damaged file of a folder (missing, truncated, changed bytes); None when all is well."""
    try:
        files: dict[str, tuple[int, str]] = read_manifest(folder)["files"]
        problems = [_file_damage(folder / name, *expected) for name, expected in files.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        return f"{MANIFEST} cannot be read ({problem})"
    return next((problem for problem in problems if problem), None)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a folder's facts and its list of files.

    Raises:
        OSError: The manifest is missing.
        ValueError: It has changed since it was written.
    """
    manifest = foreign_json.read(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.pop(OWN_SHA256, None) != _json_sha256(manifest):
        raise ValueError("its content does not match its sha256")
    return manifest


def require_whole(folder: Path) -> None:
    """Refuse a folder with any change since it was written."""
    if not folder.is_dir():
        near = [f" Did you mean {path}?" for path in sorted(folder.parent.glob("step_*")) if path.is_dir()]
        raise EnvironmentProblem(f"{folder}: must be an existing folder of a checkpoint.{''.join(near[-1:])}")
    if problem := damage(folder):
        fix = "Use an older checkpoint: resume=PATH of a run, ckpt_path=PATH of a Trainer."
        raise EnvironmentProblem(f"{folder} is damaged: {problem}. {fix}")


def file_sha256(path: Path) -> str:
    """Return a file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _take_name(aside: Path, final: Path) -> None:
    """Rename a folder to its final name; an older one is put back after a failure, and deleted otherwise."""
    older = final.with_name(f".{final.name}.older")
    shutil.rmtree(older, ignore_errors=True)
    if final.exists():
        final.rename(older)
    try:
        aside.rename(final)
    except BaseException:
        if older.exists():
            older.rename(final)
        raise
    shutil.rmtree(older, ignore_errors=True)


def _json_sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _file_damage(file: Path, num_bytes: int, sha256: str) -> str | None:
    if not file.is_file():
        return f"{file.name} is missing"
    if file.stat().st_size != num_bytes:
        return f"{file.name} has {file.stat().st_size} bytes instead of {num_bytes}"
    if file_sha256(file) != sha256:
        return f"{file.name} has changed since it was written (sha256 differs)"
    return None
