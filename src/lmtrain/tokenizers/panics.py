"""Panics of a library in Rust, told in one line: the library writes many of its own, and passes `except Exception`.

The expressions of a `tokenizer.json` are a stranger's. Oniguruma gives up on a match after ten million ways back, a
fifth of a second, and `tokenizers` panics then.
"""

import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final, cast, final

from lmtrain.errors import DataError
from lmtrain.storage.damage import one_line
from lmtrain.tokenizers.number_cuts import IN_THREES, SPLIT_EXPRESSION

PROVEN: Final = frozenset({SPLIT_EXPRESSION, IN_THREES})
STDERR: Final = 2


@contextmanager
def panics_told(what: str, *, held: "HeldOutput | None" = None) -> Generator[None]:
    """Turn a panic into one line about `what`; `held` keeps the library's own lines off the terminal.

    Raises:
        DataError: There was one.
    """
    try:
        with held if held is not None else nullcontext():
            yield
    except BaseException as problem:
        if not is_panic(type(problem)):
            raise
        raise DataError(f"{what}: {one_line(problem)}; use another tokenizer.") from None


def is_panic(kind: type[BaseException] | None) -> bool:
    """Tell whether an exception is a panic of Rust."""
    return kind is not None and kind.__name__ == "PanicException"  # its module, pyo3_runtime, cannot be imported


def held_output(content: Mapping[str, Any]) -> "HeldOutput | None":
    """Return a guard on the output for a tokenizer with expressions of its own, None for the usual ones."""
    waiting, found = [content.get("normalizer"), content.get("pre_tokenizer")], set[str]()
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found |= {value for key, value in each.items() if key == "Regex" and isinstance(value, str)}
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return HELD if found - PROVEN else None


@final
class HeldOutput:
    """Holds the process's stderr back while any thread is inside; gives it back afterwards, but for a panic's lines.

    The process needs one: `HELD`.
    """

    def __init__(self) -> None:
        self._lock, self._num_inside = threading.Lock(), 0
        self._terminal, self._has_panic = -1, False
        self._file: BinaryIO | None = None

    def __enter__(self) -> None:
        """Let stderr go into a file in memory."""
        with self._lock:
            if self._num_inside == 0:
                self._file, self._has_panic = _file_in_memory(), False
                self._terminal = os.dup(STDERR)
                os.dup2(self._file.fileno(), STDERR)
            self._num_inside += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give it back, and write what came in the meantime."""
        with self._lock:
            self._has_panic |= is_panic(kind)
            self._num_inside -= 1
            if self._num_inside == 0 and self._file is not None:
                os.dup2(self._terminal, STDERR)
                os.close(self._terminal)
                with self._file as file:
                    file.seek(0)
                    text = file.read()
                if text and not self._has_panic:
                    os.write(STDERR, text)


def _file_in_memory() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("held output"), "w+b", buffering=0)
    return cast("BinaryIO", TemporaryFile(buffering=0))


HELD: Final = HeldOutput()
