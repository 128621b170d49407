"""`--json` prints JSON alone, whatever a library prints."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout


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
