"""The column of a table with the documents: their text, or the messages of conversations."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from data_pipelines.sources.base import Document, Skipped
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.storage import foreign_json

MESSAGES = "messages"  # their name in nearly every data set of conversations
SHARE_GPT = "conversations"  # their name in ShareGPT's form, with `from` and `value` in each message
SHARE_GPT_ROLES = {"human": "user", "gpt": "assistant"}  # others are called as ours are
SHAPE = 'a conversation is a list of {"role": "user", "content": ...}, {"role": "assistant", "content": ...}'


@dataclass(frozen=True)
class Column:
    """A column of texts, or of conversations."""

    name: str
    is_messages: bool = False

    @property
    def key(self) -> str:
        """Return the setting for this column."""
        return "source.messages_column" if self.is_messages else "source.text_column"

    def require_in(self, columns: Collection[str], *, table: str) -> None:
        """Refuse a table without this column.

        Raises:
            DataError: The message lists the existing columns.
        """
        if self.name not in columns:
            has = ", ".join(columns) or "none"
            fix = suggest(self.name, columns)
            of_messages = next((name for name in (MESSAGES, SHARE_GPT) if name in columns), None)
            if of_messages is not None and of_messages != self.name:
                fix = f" Conversations are read with source.messages_column={of_messages}."
            elif self.is_messages and not fix:
                fix = f" In one column, {SHAPE}."
            raise DataError(f"{self.key}={self.name} is not a column of {table}: it has {has}.{fix}")

    def document(self, row: Mapping[str, Any], row_id: str) -> Document | Skipped:
        """Return the row's document, or why it is none."""
        if self.name not in row:
            return Skipped(row_id, f"no {self.name} in the row")
        value = row[self.name]
        if value is None:
            return Skipped(row_id, "null messages" if self.is_messages else "null text")
        if self.is_messages:
            messages = _messages_of(value)
            return Skipped(row_id, messages) if isinstance(messages, str) else Document(row_id, "", messages)
        if not isinstance(value, str):
            return Skipped(row_id, f"{self.name} is {type(value).__name__} instead of text")
        return Document(row_id, value)


def column_of(*, text_column: str | None, messages_column: str | None) -> Column:
    """Return the column named by two settings; by neither it is `text`.

    Raises:
        ConfigurationError: Both are set.
    """
    if messages_column is None:
        return Column("text" if text_column is None else text_column)
    if text_column is not None:
        msg = f"source.text_column={text_column} has no effect beside source.messages_column={messages_column}"
        raise ConfigurationError(f"{msg}; leave one out.")
    return Column(messages_column, is_messages=True)


def _messages_of(value: object) -> tuple[Mapping[str, Any], ...] | str:
    """Return the messages, or the reason why this is no conversation; text is read as JSON, for tables of text."""
    if isinstance(value, str):
        try:
            value = foreign_json.parse(value)
        except ValueError:
            return "messages are not JSON"
    if not isinstance(value, (list, tuple)):
        return f"messages are {type(value).__name__} instead of a list"
    messages = cast("list[object]", value)
    if not messages:
        return "no messages"
    read = [_message_of(message) for message in messages]
    if not all(read):
        return "a message without role"
    return tuple(cast("list[Mapping[str, Any]]", read))


def _message_of(message: object) -> Mapping[str, Any] | None:
    """Return a message as it is, or ShareGPT's in our words; None for anything else."""
    if not isinstance(message, Mapping):
        return None
    given = cast("Mapping[str, Any]", message)
    if isinstance(given.get("role"), str):
        return given
    role = given.get("from")
    if not isinstance(role, str) or "value" not in given:
        return None
    return {"role": SHARE_GPT_ROLES.get(role, role), "content": given["value"]}
