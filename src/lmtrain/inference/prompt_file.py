"""Prompts from a file of JSON lines, answers into another; an interrupted file of answers is continued.

Each answer names the model and settings that wrote it. Answers of another model or other settings are never joined.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem, suggest_path
from lmtrain.storage import foreign_json

WRITTEN_BY: Final = "written_by"  # of each answer
MOST_SHOWN: Final = 80  # characters of a value
MODEL, SHA256 = "model", "sha256"  # of what wrote it, next to the settings


def read_prompts(path: Path) -> list[str]:
    """Return the `prompt` of each line.

    Raises:
        ConfigurationError: The file does not exist.
        DataError: A line is not an object with a text `prompt`, or the file is empty.
    """
    if not path.is_file():
        near = suggest_path(path, [other.name for other in path.parent.glob("*") if other.is_file()])
        raise ConfigurationError(f"--prompts: {path} is not a file.{near}")
    prompts: list[str] = []
    for where, line in _objects(path, path.read_bytes()):
        if not isinstance(line.get("prompt"), str):
            raise DataError(f'{where}: must be an object like {{"prompt": "..."}}.')
        prompts.append(line["prompt"])
    if not prompts:
        raise DataError(f'{path} is empty; each line must be an object like {{"prompt": "..."}}.')
    return prompts


def written_so_far(path: Path, prompts: Sequence[str], *, by: Mapping[str, Any]) -> set[int]:
    """Return the indices of the prompts answered in a file, and cut off an incomplete last line.

    `by` is the model and the settings of the answers to come.

    Raises:
        ConfigurationError: Another model or other settings wrote some answers, or a line does not name them.
        DataError: It holds answers to other prompts.
    """
    if not path.is_file():
        return set()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    places: set[int] = set()
    for where, answer in list(_objects(path, whole)):
        place = answer.get("index")
        if not isinstance(place, int) or not 0 <= place < len(prompts) or prompts[place] != answer.get("prompt"):
            raise DataError(f"{where} answers another prompt; name a new file with --out.")
        _require_written_by(by, answer.get(WRITTEN_BY), where)
        places.add(place)
    if whole != content:
        path.write_bytes(whole)
    return places


def open_answers(path: Path) -> TextIO:
    """Open a file to append answers to.

    Raises:
        EnvironmentProblem: It cannot be written.
    """
    try:
        return path.open("a", encoding="utf-8")
    except OSError as problem:
        raise EnvironmentProblem(f"--out: {path} cannot be written ({problem.strerror}).") from problem


def _require_written_by(by: Mapping[str, Any], written: Any, where: str) -> None:
    written = written if isinstance(written, dict) else {}
    differing = [key for key in by if written.get(key) != by[key]]
    if SHA256 not in differing and MODEL in differing:  # the same bytes under another name
        differing.remove(MODEL)
    if differing:
        changes = ", ".join(f"{key}={_shown(written.get(key))} (now {_shown(by[key])})" for key in differing)
        raise ConfigurationError(f"--out: {where} was written with other settings: {changes}; name a new file.")


def _shown(value: Any) -> str:
    is_plain = isinstance(value, str) and value.isprintable()
    return (value if is_plain else json.dumps(value))[:MOST_SHOWN]  # the file may be anybody's


def _objects(path: Path, content: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the object of each line, with its place in the file."""
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is not UTF-8 ({problem}).") from problem
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = foreign_json.parse(line)
        except (ValueError, RecursionError) as problem:
            raise DataError(f"{path}:{number} is not JSON ({problem}).") from problem
        if not isinstance(found, dict):
            raise DataError(f"{path}:{number} must be a JSON object.")
        yield f"{path}:{number}", found
