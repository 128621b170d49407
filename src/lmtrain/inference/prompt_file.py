"""Prompts from a file of JSON lines, answers into another; an interrupted file of answers is continued.

Each answer names the model and settings that wrote it. Answers of another model or other settings are never joined.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, DataError, suggest_path
from lmtrain.storage import foreign_json

WRITTEN_BY: Final = "written_by"  # of each answer


def read_prompts(path: Path) -> list[str]:
    """Return the `prompt` of each line.

    Raises:
        ConfigurationError: The file does not exist.
        DataError: A line is not an object with a text `prompt`, or the file is empty.
    """
    if not path.is_file():
        raise ConfigurationError(f"--prompts: {path} is not a file.{suggest_path(path)}")
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
        ConfigurationError: Another model or other settings wrote some answers.
        DataError: It holds answers to other prompts.
    """
    if not path.is_file():
        return set()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    places: set[int] = set()
    for where, answer in _objects(path, whole):
        place, written_by = answer.get("index"), answer.get(WRITTEN_BY)
        if not isinstance(place, int) or not 0 <= place < len(prompts) or prompts[place] != answer.get("prompt"):
            raise DataError(f"{where} answers another prompt; name a new file with --out.")
        if written_by != by:
            known = written_by if isinstance(written_by, dict) else {}
            changes = ", ".join(f"{key}={json.dumps(by[key])}" for key in by if known.get(key) != by[key])
            raise ConfigurationError(f"--out: {where} was written with settings other than {changes}; name a new file.")
        places.add(place)
    if whole != content:
        path.write_bytes(whole)
    return places


def _objects(path: Path, content: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the object of each line, with its place in the file."""
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found = foreign_json.parse(line)
        except (ValueError, RecursionError) as problem:
            raise DataError(f"{path}:{number} is not JSON ({problem}).") from problem
        if not isinstance(found, dict):
            raise DataError(f"{path}:{number} must be a JSON object.")
        yield f"{path}:{number}", found
