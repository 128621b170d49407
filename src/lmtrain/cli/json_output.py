"""`--json` prints JSON alone, whatever a library prints."""

import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO, final

from typing_extensions import override

from lmtrain.storage import foreign_json


@contextmanager
def prints_to_stderr(is_json: bool = True) -> Generator[None]:  # noqa: FBT001, FBT002
    """Send all that Python and native code print to stderr, so that the JSON printed afterwards is alone on stdout."""
    if not is_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def prints_json_alone(is_json: bool) -> Generator[None]:  # noqa: FBT001
    """Send every line of stdout to stderr but those of JSON, and all that native code prints."""
    if not is_json:
        yield
        return
    out, kept = sys.stdout, os.dup(1)
    is_process_s = out is sys.__stdout__
    out.flush()
    with os.fdopen(kept, "w", encoding="utf-8") as file:
        lines = _Lines(file if is_process_s else out)
        os.dup2(2, 1)
        try:
            with redirect_stdout(lines):
                yield
        finally:
            lines.finish()
            file.flush()
            os.dup2(kept, 1)


@final
class _Lines(io.TextIOBase):
    """Whole lines: objects and lists of JSON to `out`, others to stderr."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._held = out, ""

    @override
    def write(self, s: str, /) -> int:
        *lines, self._held = (self._held + s).split("\n")
        for line in lines:
            print(line, file=self._out if _is_json(line) else sys.stderr, flush=True)
        return len(s)

    def finish(self) -> None:
        """Write a last line without an end."""
        if self._held:
            self.write("\n")


def _is_json(line: str) -> bool:
    try:
        return line.startswith(("{", "[")) and foreign_json.parse(line) is not None
    except ValueError:
        return False
