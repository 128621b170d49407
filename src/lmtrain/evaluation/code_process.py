"""The process of `code_check`: one program written by a model, with limits on time, memory, files and the network.

A script by itself, without imports from lmtrain. It reads a line of JSON, runs the program, and writes the line's mark
where the program ended without an error. The limits stop accidents; for a model from strangers use a container too.
"""

import ctypes
import json
import resource
import sys
from typing import Any

MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
NUM_FILES = 32
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # of unshare(2): a network without a way out
NO_NEW_PRIVILEGES = 38  # of prctl(2)
REFUSED = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.spawn", "os.kill", "os.remove",
           "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate",
           "subprocess.Popen", "shutil.", "socket.", "ctypes.", "pty.", "signal.", "sys._getframe")  # fmt: skip


def main() -> None:
    """Run the program on standard input, and write the mark at its end."""
    asked = json.loads(sys.stdin.readline())
    _limit(int(asked["cpu_seconds"]))
    out, sys.stdout, sys.stderr = sys.stdout, None, None  # type: ignore[assignment]
    sys.addaudithook(_refuse)
    try:
        exec(compile(asked["program"], "program", "exec"), {"__name__": "program"})  # noqa: S102 (the task itself)
    except BaseException:  # noqa: BLE001 (whatever a program raises, its exit too)
        return
    out.write(asked["mark"])
    out.flush()


def _limit(cpu_seconds: int) -> None:
    system = ctypes.CDLL(None)
    system.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if system.unshare(NEW_NETWORK) != 0:
        system.unshare(NEW_USER | NEW_NETWORK)  # where neither is allowed, the audit hook is left
    for kind, value in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, NUM_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse starting programs, the network, and files other than for reading."""
    if event.startswith(REFUSED) or (event == "open" and _writes(*arguments[1:3])):
        raise PermissionError(event)


def _writes(mode: Any, flags: Any) -> bool:
    return any(letter in str(mode or "") for letter in "wax+") or bool(int(flags or 0) & 3)


if __name__ == "__main__":
    main()
