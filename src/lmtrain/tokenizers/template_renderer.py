"""Templates from anyone, rendered in another process, in jinja2's sandbox, with limits on time and memory.

Rendered as in transformers. This file is also that process's script, without imports from lmtrain: a line of JSON in is
one rendering, a line out its answer.
"""

import functools
import json
import re
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from datetime import datetime
from typing import IO, Any, final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 1 << 30  # of the whole process
MAX_CHARACTERS = 1 << 24  # of a text
PROBLEMS = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError),
    *(AttributeError, MemoryError, re.error),
)


class TemplateProblem(ValueError):
    """A template's failure to write its messages, and the reason."""


@final
class TemplateRenderer:
    """One process, begun with the first text, and again after its end; safe in any thread."""

    def __init__(self, *, cpu_seconds: float = 5.0) -> None:
        """Take the processor time of one rendering at most."""
        self._cpu_seconds = cpu_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return a template's text.

        Raises:
            TemplateProblem: It refuses, is not a template, takes too long, or grows too large.
        """
        asked = {"template": template, "variables": variables, "cpu_seconds": self._cpu_seconds}
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
            command = [sys.executable, "-I", __file__]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
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


def main() -> None:
    """Answer each line until the input ends; a rendering beyond its seconds of processor time ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_seconds"])  # its signal ends a process, in C code too
        written = answer(asked["template"], asked["variables"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(written) + "\n")
        sys.stdout.flush()


def answer(template: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return a template's `text`, or the `problem` with it."""
    try:
        pieces, num_characters = list[str](), 0
        for piece in _compiled(template).generate(dict(variables)):
            num_characters += len(piece)
            if num_characters > MAX_CHARACTERS:
                return {"problem": f"a text of more than {MAX_CHARACTERS} characters"}
            pieces.append(piece)
    except PROBLEMS as problem:
        return {"problem": str(problem)[:500] or type(problem).__name__}
    return {"text": "".join(pieces)}


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` around an assistant's words: they are written as they stand.

    Names set within hold within.
    """

    tags = {"generation"}  # noqa: RUF012  # as in jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        """Read what stands between the tags."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


@functools.lru_cache(maxsize=4)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    return environment.from_string(template, globals={"raise_exception": _refuse, "strftime_now": _written_now})


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  # templates call it by place too
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Write JSON as transformers does: jinja2's own would escape <, > and & for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _written_now(form: str) -> str:
    """Write this machine's time in a form of strftime's."""
    return datetime.now().strftime(form)  # noqa: DTZ005  # as in transformers: local, its zone has no name


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    main()
