"""Documents from JSON lines: one object a line, its text under one key."""

import json
from collections.abc import Iterator
from typing import cast

from data_pipelines.sources.base import Document, Skipped
from lmtrain.errors import DataError, suggest


def documents_of_lines(lines: str, *, name: str, place: str, text_field: str) -> Iterator[Document | Skipped]:
    """Yield each line's text as the document `name:line number`; `place` is what an error calls the file.

    Raises:
        DataError: A line is no JSON object, or `text_field` is missing or not text.
    """
    for number, line in enumerate(lines.split("\n"), start=1):
        if line.strip():
            text = _text_of(line, place=f"{place}:{number}", text_field=text_field)
            line_id = f"{name}:{number}"
            yield Skipped(line_id, "null text") if text is None else Document(line_id, text)


def _text_of(line: str, *, place: str, text_field: str) -> str | None:
    try:
        content: object = json.loads(line)
    except ValueError as problem:
        raise DataError(f"{place} is not JSON ({problem}); correct the line or remove it.") from problem
    if not isinstance(content, dict):
        raise DataError(
            f"{place} is {type(content).__name__} instead of a JSON object such as {{'{text_field}': ...}}."
        )
    fields = cast("dict[str, object]", content)
    if text_field not in fields:
        known = ", ".join(fields) or "no fields"
        raise DataError(
            f"source.text_field={text_field} is not in {place}: it has {known}.{suggest(text_field, fields)}"
        )
    text = fields[text_field]
    if text is not None and not isinstance(text, str):
        raise DataError(f"source.text_field={text_field} of {place} is {type(text).__name__} instead of text.")
    return text
