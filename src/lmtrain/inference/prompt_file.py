"""Prompts from a file of JSON lines, answers into another; an interrupted one is continued.

Each answer says what wrote it: model and settings. Answers of another model or other settings are never joined.
"""

import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem, suggest_path
from lmtrain.storage import foreign_json

WRITTEN_BY: Final = "written_by"  # of each answer
MOST_SHOWN: Final = 80  # characters of a value
MODEL, SHA256 = "model", "sha256"  # of what wrote it, beside the settings


def read_prompts(path: Path) -> list[str]:
    """Return the `prompt` of each line.

    Raises:
        ConfigurationError: There is no such file.
        DataError: A line is no object with a text `prompt`, or there is none.
    """
    if not path.is_file():
        near = suggest_path(path, [other.name for other in path.parent.glob("*") if other.is_file()])
        raise ConfigurationError(f"--prompts {path} is not a file; name one with a JSON object a line.{near}")
    prompts = [_prompt(line, f"{path}:{number}") for number, line in _lines(path, path.read_bytes())]
    if not prompts:
        raise DataError(f'--prompts {path} has no lines; each is an object as {{"prompt": "..."}}.')
    return prompts


def written_so_far(path: Path, prompts: Sequence[str], *, by: Mapping[str, Any]) -> set[int]:
    """Return the prompts, from 0, with an answer in a file, and cut off an incomplete last line.

    `by` is the model and the settings of the answers to come.

    Raises:
        ConfigurationError: Another model or other settings wrote some answers, or these do not say.
        DataError: It holds answers to other prompts.
    """
    if not path.is_file():
        return set()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    lines = _lines(path, whole)
    placed = {_place(line, f"{path}:{number}", prompts) for number, line in lines}
    for number, line in lines:
        _require_written_by(by, _object(line, f"{path}:{number}"), path=path, number=number)
    if whole != content:  # none of a refused file's bytes are taken
        path.write_bytes(whole)
    return placed


def open_answers(path: Path) -> TextIO:
    """Open a file to append answers to.

    Raises:
        EnvironmentProblem: It cannot be written.
    """
    try:
        return path.open("a", encoding="utf-8")
    except OSError as problem:
        raise EnvironmentProblem(
            f"--out {path} cannot be written ({problem.strerror}); name another file."
        ) from problem


def _place(line: str, where: str, prompts: Sequence[str]) -> int:
    answer = _object(line, where)
    place = answer.get("index")
    if isinstance(place, int) and 0 <= place < len(prompts) and prompts[place] == answer.get("prompt"):
        return place
    raise DataError(f"{where} answers another file's prompt; name a new file with --out, or remove this one.")


def _require_written_by(by: Mapping[str, Any], answer: Mapping[str, Any], *, path: Path, number: int) -> None:
    there, another = answer.get(WRITTEN_BY), f"nearest valid: --out {shlex.quote(str(_free(path)))}."
    if not isinstance(there, dict):
        raise ConfigurationError(
            f"--out {path}: line {number} has no {WRITTEN_BY}, the model and settings of its answer; {another}"
        )
    differing = [key for key in by if there.get(key) != by[key]]
    if MODEL in differing:  # the same bytes under another name are the same model
        differing.remove(SHA256 if SHA256 in differing else MODEL)
    if differing:
        told = "; ".join(f"{key}={_value(there.get(key))}, now {_value(by[key])}" for key in differing)
        raise ConfigurationError(f"--out {path}: line {number} was written otherwise: {told}; {another}")


def _free(path: Path) -> Path:
    """Return a file's name with the first number that no file has."""
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2))
    return next(other for other in others if not other.exists())


def _value(value: Any) -> str:
    is_plain = isinstance(value, str) and value.isprintable()
    return (value if is_plain else json.dumps(value))[:MOST_SHOWN]  # of anybody's file


def _prompt(line: str, where: str) -> str:
    prompt = _object(line, where).get("prompt")
    if isinstance(prompt, str):
        return prompt
    raise DataError(f'{where} has no text "prompt"; each line is an object as {{"prompt": "..."}}.')


def _object(line: str, where: str) -> Mapping[str, Any]:
    try:
        content = foreign_json.parse(line)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{where} is no JSON ({problem}); correct the line.") from problem
    if not isinstance(content, dict):
        raise DataError(f'{where} is no object; each line is one as {{"prompt": "..."}}.')
    return content


def _lines(path: Path, content: bytes) -> list[tuple[int, str]]:
    """Return the lines with a word and their numbers in the file."""
    try:
        lines = enumerate(content.decode("utf-8").split("\n"), start=1)
        return [(number, line) for number, line in lines if line.strip()]
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is no UTF-8 ({problem}); convert it.") from problem
