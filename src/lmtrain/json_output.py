"""`--json` prints JSON alone, whatever a library or native code prints."""

import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Any, Final, TextIO

ANSWERS: Final = ContextVar[TextIO | None]("ANSWERS", default=None)  # the stdout of print_json; None: everybody's


@contextmanager
def json_alone(is_json: bool) -> Generator[None]:  # noqa: FBT001
    """Send all that Python and native code print to stderr, but for what `print_json` prints."""
    if not is_json or ANSWERS.get() is not None:
        yield
        return
    out = sys.stdout
    out.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as kept:
        token = ANSWERS.set(kept if out is sys.__stdout__ else out)
        os.dup2(2, 1)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            os.dup2(kept.fileno(), 1)
            ANSWERS.reset(token)


def print_json(value: Any, file: TextIO | None = None) -> None:
    """Print a line of JSON on stdout, or into a file."""
    print(json.dumps(value, ensure_ascii=file is None), file=file or ANSWERS.get(), flush=True)
