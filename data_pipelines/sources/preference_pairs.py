"""Preference pairs: a prompt, a preferred answer and another one, from JSON lines of this machine."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from data_pipelines.sources.base import REJECTED, Document, Skipped, Source
from lmtrain.accounting.options.parts import SourceFacts
from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import told_as_damage
from lmtrain.tokenizers.conversation import ConversationError, read_conversation

VERSION: Final = 1  # raised when the same files come to make other pairs
KEYS: Final = ("prompt", "chosen", "rejected")


@final
class PreferencePairs(Source):
    """Lines {prompt, chosen, rejected}: lists of messages, or texts of a user and of the assistant."""

    def __init__(self, *, paths: str | list[str]) -> None:
        """Read these files one after another.

        Raises:
            DataError: One of them is no file.
        """
        self._paths = [Path(path) for path in ([paths] if isinstance(paths, str) else paths)]
        for path in self._paths:
            if not path.is_file():
                raise DataError(f"source.paths holds {path}, which is no file; name files of JSON lines.")

    @property
    def name(self) -> str:
        """Return `preference_pairs`."""
        return "preference_pairs"

    @property
    def has_conversations(self) -> bool:
        """Return true."""
        return True

    def fingerprint(self) -> str:
        """Return a hash of the files' contents."""
        total = hashlib.sha256(str(VERSION).encode())
        for path in self._paths:
            total.update(path.read_bytes())
        return total.hexdigest()

    def documents(self) -> Iterator[Document | Skipped]:
        """Yield each pair under its file and line.

        Raises:
            DataError: A line is no pair, its turns are out of order, or both answers are the same.
        """
        for path in self._paths:
            with told_as_damage(path, fix="correct it"), path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield Document(f"{path.name}:{number}", "", messages=_pair(line, where=f"{path}:{number}"))


def _pair(line: str, *, where: str) -> tuple[Mapping[str, Any], ...]:
    """Return the preferred conversation, with the other answer under a key of its last turn."""
    try:
        content: Any = foreign_json.parse(line)
    except ValueError as problem:
        raise DataError(f"{where} is no JSON ({problem}); a line is one object of {', '.join(KEYS)}.") from problem
    missing = [key for key in KEYS if not isinstance(content, Mapping) or not content.get(key)]
    if missing:
        raise DataError(f"{where} lacks {', '.join(missing)}; a line is one object of {', '.join(KEYS)}.")
    prompt = _messages(content["prompt"], "user")
    chosen, rejected = (_messages(content[key], "assistant") for key in ("chosen", "rejected"))
    for key, answer in (("chosen", chosen), ("rejected", rejected)):
        try:
            read_conversation(prompt, for_answer=True)
            turns = read_conversation([*prompt, *answer])
        except ConversationError as problem:
            raise DataError(f"{where}, {key}: {problem}") from problem
        if len(answer) != 1 or turns[-1].role != "assistant":
            raise DataError(f"{where}: {key} is {len(answer)} messages; give the assistant's one answer to the prompt.")
    if chosen[0].get("content") == rejected[0].get("content"):
        raise DataError(f"{where}: chosen and rejected are equal, and nothing is preferred; remove the line.")
    return (*prompt, {**chosen[0], REJECTED: rejected})


def _messages(value: Any, role: str) -> list[Mapping[str, Any]]:
    """Return messages as they are, a text as a message of the role."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return [*value] if isinstance(value, Sequence) else [value]


def preference_pairs_facts() -> SourceFacts:
    """Tell whether documents are lists of messages."""
    return SourceFacts(has_conversations=True, has_pairs=True)
