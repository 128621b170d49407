"""The process of `template_renderer`: a chat template of anyone's, in jinja2's sandbox, with limits on time and memory.

A script by itself, without imports from lmtrain. A line of JSON in is one rendering, a line out its answer.
"""

import functools
import json
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 1 << 30  # of the whole process
MAX_CHARACTERS = 1 << 24  # of a text
PROBLEMS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
    AttributeError,
    MemoryError,
)


def main() -> None:
    """Answer each line until there are no more; a rendering beyond its seconds of processor time ends the process."""
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
        for piece in _compiled(template).generate(**variables):
            num_characters += len(piece)
            if num_characters > MAX_CHARACTERS:
                return {"problem": f"a text of more than {MAX_CHARACTERS} characters"}
            pieces.append(piece)
    except PROBLEMS as problem:
        return {"problem": str(problem)[:500] or type(problem).__name__}
    return {"text": "".join(pieces)}


@functools.lru_cache(maxsize=1)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    return environment.from_string(template, globals={"raise_exception": _refuse})


def _to_json(value: Any, indent: int | None = None) -> str:
    """Write JSON as transformers does: jinja2's own would escape <, > and & for web pages."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    main()
