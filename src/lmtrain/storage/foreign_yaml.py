"""YAML from anywhere: plain values alone, bounded in bytes, depth, and what its aliases stand for."""

from pathlib import Path
from typing import Any, Final

import yaml

from lmtrain.storage.foreign_json import MAX_DEPTH, TooMuch, read_bytes, require_shallow

MAX_BYTES: Final = 1 << 22
MAX_ITEMS: Final = 100_000  # values, each alias counted in full: ten lines can stand for billions


def parse(text: str | bytes) -> Any:
    """Return the content of a YAML text.

    Raises:
        ValueError: It is not YAML of plain values, nested too deeply, or too large with its aliases written out.
    """
    try:
        content = yaml.safe_load(text)
    except RecursionError as problem:
        raise TooMuch(f"it is nested more than {MAX_DEPTH} deep") from problem
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, OverflowError) as problem:
        raise ValueError(" ".join(str(problem).split()) or type(problem).__name__) from problem
    require_shallow(content, max_items=MAX_ITEMS)
    return content


def read(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        OSError: It cannot be read.
        ValueError: As `parse`, or it is too large.
    """
    return parse(read_bytes(path, max_bytes=MAX_BYTES))
