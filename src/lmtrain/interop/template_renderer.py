"""Templates from anyone, rendered in a process of their own: it may hang or grow without harm to this one."""

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, final

SCRIPT = Path(__file__).with_name("template_process.py")


class TemplateProblem(ValueError):
    """A template's failure to write its messages, and the reason."""


@final
class TemplateRenderer:
    """One process, begun with the first text, and again after its end; safe in any thread."""

    def __init__(self, *, kind: Literal["chat", "task"] = "chat", cpu_seconds: float = 5.0) -> None:
        """Take the processor time of one rendering at most; `kind` is of the templates."""
        self._kind, self._cpu_seconds = kind, cpu_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return a template's text.

        Raises:
            TemplateProblem: It refuses, is not a template, takes too long, or grows too large.
        """
        asked = {"template": template, "variables": variables, "cpu_seconds": self._cpu_seconds, "kind": self._kind}
        with self._lock:
            answer = self._answer(json.dumps(asked, default=str).encode() + b"\n")
        if "text" not in answer:
            raise TemplateProblem(answer["problem"])
        return answer["text"]

    def _answer(self, line: bytes) -> dict[str, str]:
        process = self._running()
        to, back = _pipes(process)
        try:
            to.write(line)
            to.flush()
            answer = back.readline()
        except BrokenPipeError:
            answer = b""
        if not answer.endswith(b"\n"):
            self._process = None
            _end(process)
            return {"problem": f"more than {self._cpu_seconds:g} s of processor time, or too much memory"}
        return json.loads(answer)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # -I: neither the working directory nor the environment decides the imports.
            command = [sys.executable, "-I", str(SCRIPT)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        process.kill()
        process.wait()
        for pipe in _pipes(process):
            pipe.close()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
