"""JSON from anywhere, bounded in bytes and depth: every failure is a ValueError, and none takes the machine's memory.

`json.loads` alone answers a depth of some thousand brackets with RecursionError, and takes a file of any size.
"""

import errno
import json
import re
import stat
from pathlib import Path
from typing import Any, Final

MAX_DEPTH: Final = 100
HOLDERS: Final = (dict, list, tuple)
MAX_BYTES: Final = 1 << 28  # of a file; the largest tokenizers have a tenth of it
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class TooMuch(ValueError):
    """Content nested too deeply, or too large."""


def parse(text: str | bytes) -> Any:
    """Return the content of a JSON text.

    Raises:
        ValueError: It is not JSON, not Unicode (half of a surrogate pair included), or nested too deeply.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))  # json.loads would let surrogates pass
    try:
        content = json.loads(text)
    except RecursionError:
        raise TooMuch(_too_deep()) from None
    if text.count("[") + text.count("{") > MAX_DEPTH:  # else it cannot be deep
        require_shallow(content)
    if _SURROGATE.search(text):
        json.dumps(content, ensure_ascii=False).encode()
    return content


def read(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not JSON, not UTF-8, too large, or nested too deeply.
    """
    return parse(read_bytes(path))


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return a file's bytes.

    Raises:
        OSError: It cannot be read, or is a pipe, a socket or a device: its end may never come.
        ValueError: There are more than `max_bytes`.
    """
    require_an_end(path)
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise TooMuch(f"it has more than {max_bytes:,} bytes")
    return content


def require_an_end(path: Path) -> None:
    """Raise OSError for what may never end, or never begin: nothing, a pipe, a socket or a device."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # of a folder, opening tells
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device", str(path))


def require_shallow(content: Any, *, max_items: int | None = None) -> None:
    """Raise TooMuch for lists, tuples and mappings nested beyond MAX_DEPTH, or of more than `max_items` values."""
    level = [content] if isinstance(content, HOLDERS) else []
    num_items = 0
    for _ in range(MAX_DEPTH):
        num_items += sum(map(len, level))
        if max_items is not None and num_items > max_items:
            raise TooMuch(f"it has more than {max_items:,} values")
        level = [
            below
            for each in level
            for below in (each.values() if isinstance(each, dict) else each)
            if isinstance(below, HOLDERS)
        ]
    if level:
        raise TooMuch(_too_deep())


def _too_deep() -> str:
    return f"it is nested more than {MAX_DEPTH} deep"
