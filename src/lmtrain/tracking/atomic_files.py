"""The ways a file of a run is written: replaced whole, locked, or appended to line by line.

Every file is replaced through `write_bytes` (a new file aside, fsync, rename, fsync of the folder), or grows in a
`LineFile`. Nothing is opened through a symbolic link, since a run's folder may come from a stranger.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Final, cast

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import drop_torn_end, open_inside, write_durably

CONTROL: Final = re.compile(rb"\\u00(?:0[0-8bcefBCEF]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])")
POLL_SECONDS = 0.05
MAY_PASS: Final = (errno.ENOSPC, errno.EDQUOT)
FIXES: Final = {
    errno.ENOSPC: "free some space, or set run.root to a larger disk",
    errno.EDQUOT: "free some of your quota, or set run.root to another disk",
    errno.ELOOP: "it is a symbolic link, which nothing is written through; remove it",
    errno.ENOTDIR: "a file or a symbolic link is in its way; remove that, or set run.root to another folder",
}


def storage_problem(path: Path, error: OSError) -> EnvironmentProblem:
    """Return the error for an unwritable file: its path, the cause, and a fix."""
    fix = FIXES.get(error.errno or 0, "make it writable, or set run.root to another folder")
    return EnvironmentProblem(f"{path} cannot be written: {error.strerror or error}; {fix}.")


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace the file at path by content, whole or not at all; a private file is readable by its owner only."""
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

    Control characters are replaced, because the text may be printed to a terminal and the file may be anybody's.
    """
    try:
        content: object = foreign_json.parse(CONTROL.sub(rb"\\ufffd", foreign_json.read_bytes(path)))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    except OSError as problem:
        reason = problem.strerror or problem
        raise EnvironmentProblem(f"{path} cannot be read: {reason}; restore it, or name another run.") from problem
    return cast("dict[str, object]", content) if isinstance(content, dict) else {}


@contextlib.contextmanager
def file_lock(path: Path, *, wait_seconds: float = 3.0, refusal: str = "") -> Generator[None]:
    """Hold the lock file at path while the body runs; in it stand this process's number and machine.

    It waits a little: a killed process needs a moment to be gone.

    This is a record lock: unlike flock it is not inherited by forked loader workers, which outlive a killed run for a
    moment.

    Raises:
        EnvironmentProblem: It cannot be written, or is not free in time; then the message is refusal, with the holder
            for HOLDER.
    """
    try:
        descriptor = open_inside(path.parent, path.name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    except OSError as problem:
        raise storage_problem(path, problem) from problem
    with os.fdopen(descriptor, "a+") as file:
        deadline = time.monotonic() + wait_seconds
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            file.seek(0)
            holder = file.read().strip() or "another process"
            if time.monotonic() >= deadline:
                raise EnvironmentProblem((refusal or f"{path} is held by HOLDER.").replace("HOLDER", holder))
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(f"{os.getpid()} on {socket.gethostname()}\n")
        file.flush()  # through this very file: closing another one on this path would drop the lock
        yield


def is_held(path: Path) -> bool:
    """Return whether another process holds the lock file at path, or may hold it; nothing is written."""
    try:
        descriptor = open_inside(path.parent, path.name, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class LineFile:
    """Append whole lines to `folder/name`; lines that a full disk refuses stay in memory, `waiting`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self.waiting: list[bytes] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.descriptor = open_inside(folder, name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            drop_torn_end(self.descriptor)
        except OSError as error:
            raise storage_problem(self.path, error) from error

    def append(self, lines: list[str]) -> OSError | None:
        """Write the waiting lines and these, newlines included; return the cause of their wait, None without any.

        Raises:
            EnvironmentProblem: The disk is not full, but broken or read-only.
        """
        self.waiting += [line.encode() for line in lines]
        whole = os.fstat(self.descriptor).st_size
        try:
            content = b"".join(self.waiting)
            while content:
                content = content[os.write(self.descriptor, content) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, whole)
            if error.errno in MAY_PASS:
                return error
            raise storage_problem(self.path, error) from error
        self.waiting.clear()
        return None

    def close(self) -> None:
        """Close the file, without the lines still waiting; closing twice is fine."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
