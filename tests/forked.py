"""Starts of training commands without their imports: a server has imported the trainer, and forks once a command.

A child is a process of its own: its exit code, its signals and its output are those of `python train.py`. The server
itself computes nothing, as torch refuses a fork after a backward pass.
"""

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

MAX_SECONDS = 280
MAX_REQUEST_BYTES = 1 << 17


def train(words: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run `train.py` with these words in a folder and return how it ended, as soon as nobody holds its output."""
    request = json.dumps({"words": list(words), "folder": str(folder), "environment": dict(environment)})
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
    """Answer each request with the exit code of a forked command; in a child, return that code."""
    _import_the_trainer()
    while True:
        request, outputs, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 2)
        if not request:
            return 0
        child = os.fork()
        if child == 0:
            connection.close()
            return _command(json.loads(request), outputs)
        for output in outputs:
            os.close(output)
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _import_the_trainer() -> None:
    """Import all that a training command imports, in its order."""
    from lmtrain.training.lean_import import import_lightning

    import_lightning()
    for name in ("command_line.compose", "execution.rehearsal", "execution.run"):
        importlib.import_module(f"lmtrain.composition.{name}")


def _command(request: dict[str, object], outputs: list[int]) -> int:
    """Be `python train.py` in the request's folder and environment."""
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    environment, words = request["environment"], request["words"]
    assert isinstance(environment, dict)
    assert isinstance(words, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    signal.alarm(MAX_SECONDS)
    sys.argv = ["train.py", *words]
    from lmtrain.cli import serve as serve_verb

    return serve_verb("train", words, program="python train.py")


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
