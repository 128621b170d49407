"""Starts of scripts that train, without their imports: a server has imported the trainer, and forks once a start.

A child is a process of its own: its exit code, its signals and its output are those of `python SCRIPT`. The server
itself computes nothing, as torch refuses a fork after a backward pass.
"""

import atexit
import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from lmtrain.launch.detect import STORE_VARIABLE
from tests.no_wait import leave_files_to_the_kernel

MAX_SECONDS = int(os.environ.get("FORKED_MAX_SECONDS", "280"))
MAX_REQUEST_BYTES = 1 << 17


def run(
    script: Path, words: Sequence[str], *, folder: Path, environment: Mapping[str, str], num_ranks: int = 1
) -> "subprocess.CompletedProcess[str]":
    """Run a script with these words in a folder and return how it ended, as soon as nobody holds its output.

    Several ranks are started as by torchrun, but meet in a file.
    """
    with TemporaryDirectory() as meeting:
        environments = [dict(environment)]
        if num_ranks > 1:
            environments = [
                {**environment, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(num_ranks)}
                | {"LOCAL_WORLD_SIZE": str(num_ranks), STORE_VARIABLE: f"{meeting}/store"}
                for rank in map(str, range(num_ranks))
            ]
        request = json.dumps({"words": [str(script), *words], "folder": str(folder), "environments": environments})
        outputs = [os.pipe(), os.pipe()]
        server = _server()
        socket.send_fds(server, [request.encode()], [write for _, write in outputs])
        for _, write in outputs:
            os.close(write)
        with ThreadPoolExecutor(2) as readers:
            out, err = readers.map(_read, (read for read, _ in outputs))
        return subprocess.CompletedProcess(list(words), int(server.recv(16)), out, err)


def _read(descriptor: int) -> str:
    with open(descriptor) as file:
        return file.read()


@cache
def _server() -> socket.socket:
    """Start this process's server; it ends with the connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
    process = subprocess.Popen(
        command, cwd=root, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(connection: socket.socket) -> int:
    """Answer each request with the exit code of a forked command."""
    _import_the_trainer()
    leave_files_to_the_kernel()
    gc.collect()
    gc.freeze()  # looking for garbage would copy this memory in every child
    while True:
        request, outputs, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 2)
        if not request:
            return 0
        children: set[int] = set()
        for environment in json.loads(request)["environments"]:
            child = os.fork()
            if child == 0:
                connection.close()
                _command(json.loads(request), environment, outputs)
            children.add(child)
        for output in outputs:
            os.close(output)
        connection.send(str(_wait_for(children)).encode())


def _wait_for(children: set[int]) -> int:
    """Return the first code of a rank that is not 0, without which the others are not left alive."""
    first = 0
    while children:
        child, status = os.wait()
        children.remove(child)
        first = first or os.waitstatus_to_exitcode(status)
        for other in children if first else ():
            os.kill(other, signal.SIGKILL)
    return first


def _import_the_trainer() -> None:
    """Import all that a training imports, in its order, and read a config: parsers and signatures are kept."""
    from lmtrain.training.lean_import import import_lightning

    import_lightning()
    for name in ("compose.compose", "execution.meta_build", "execution.run"):
        importlib.import_module(f"lmtrain.run.{name}")
    from lmtrain.run.compose.arguments import parse_arguments
    from lmtrain.run.compose.compose import configs_of
    from lmtrain.run.run_config import read_config
    from tests.tiny import TINY

    for values, _ in configs_of(parse_arguments(TINY), config_name="train"):
        read_config(values).checked()


def _command(request: dict[str, Any], environment: dict[str, str], outputs: list[int]) -> NoReturn:
    """Be `python SCRIPT ...` in the request's folder, in an environment of its own."""
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["folder"])
    signal.alarm(MAX_SECONDS)
    faulthandler.enable()
    sys.argv = request["words"]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End as the interpreter does, without taking its modules apart: a third of a second, and their copies' memory."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
