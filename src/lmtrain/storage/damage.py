"""Errors of reading a file, reported as damage of the file."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import LMTRAIN_ERRORS, DataError
from lmtrain.storage import foreign_json

KINDS: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError)
DAMAGES: Final = (*KINDS, RecursionError, MemoryError)


@contextmanager
def refuse_damage(what: Path | str, *, fix: str = "restore or rebuild it") -> Generator[None]:
    """Turn the errors of values of another kind, size or form than a file's own into one DataError about the file."""
    try:
        yield
    except LMTRAIN_ERRORS:
        raise
    except DAMAGES as problem:
        raise DataError(f"{what} is damaged ({one_line(problem)}); {fix}.") from problem


def read_object(path: Path, *, fix: str = "copy it again") -> dict[str, Any]:
    """Return the JSON object of a file from anywhere; empty where there is no file, or another value."""
    if not path.is_file():
        return {}
    with refuse_damage(path, fix=fix):
        content = foreign_json.read(path)
        return content if isinstance(content, dict) else {}


def one_line(problem: BaseException) -> str:
    """Return an error's message on one line of at most 300 characters, or its kind without one."""
    return " ".join(str(problem).split())[:300] or type(problem).__name__
