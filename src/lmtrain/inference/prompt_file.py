"""Prompts from a file of JSON lines, answers into another; an interrupted one is continued."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.storage import foreign_json


def read_prompts(path: Path) -> list[str]:
    """Return the `prompt` of each line.

    Raises:
        ConfigurationError: There is no such file.
        DataError: A line is no object with a text `prompt`, or there is none.
    """
    if not path.is_file():
        raise ConfigurationError(f"--prompts {path} is not a file; name one with a JSON object a line.")
    prompts = [_prompt(line, f"{path}:{number}") for number, line in enumerate(_lines(path), start=1)]
    if not prompts:
        raise DataError(f'--prompts {path} has no lines; each is an object as {{"prompt": "..."}}.')
    return prompts


def written_so_far(path: Path, prompts: Sequence[str]) -> set[int]:
    """Return the prompts, from 0, with an answer in a file, and cut off an incomplete last line.

    Raises:
        DataError: It holds answers to other prompts.
    """
    if not path.is_file():
        return set()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    return {_place(line, f"{path}:{n}", prompts) for n, line in enumerate(_lines(path), start=1)}


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


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is no UTF-8 ({problem}); convert it.") from problem
