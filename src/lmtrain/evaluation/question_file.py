"""Questions with their right answers from a file of JSON lines: conversations up to an assistant's turn."""

from pathlib import Path
from typing import Any

from lmtrain.errors import DataError
from lmtrain.evaluation.answer_scores import ALL, Question
from lmtrain.storage import foreign_json
from lmtrain.tokenizers.conversation import ConversationError, read_conversation


def read_questions(path: Path) -> list[Question]:
    """Return the question and answer of each line, `{"messages": [...], "kind": "..."}`; the kind may be left out.

    Raises:
        DataError: There is no such file, or a line is no conversation that ends in an assistant's turn with text.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # a JSON text may hold other ends of lines
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(
            f"--answers {path} cannot be read as UTF-8 text ({problem}); name a file of JSON lines."
        ) from problem
    found = [_asked(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise DataError(f"--answers {path} has no line; give it conversations.")
    return found


def _asked(line: str, where: str) -> Question:
    try:
        content: Any = foreign_json.parse(line)
    except ValueError as problem:
        raise DataError(f"{where} is no JSON ({problem}).") from problem
    messages = content.get("messages") if isinstance(content, dict) else None
    if not isinstance(messages, list) or len(messages) < 2 or not all(isinstance(one, dict) for one in messages):
        raise DataError(f'{where} has no "messages" of a question and its answer.')
    *asked, last = messages
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str) or not last["content"].strip():
        raise DataError(f"{where} does not end in an assistant's turn with text, the right answer.")
    try:
        read_conversation(asked, for_answer=True)
    except ConversationError as problem:
        raise DataError(f"{where}: {problem}") from problem
    kind = "answers" if content.get("kind") is None else str(content["kind"])
    if kind == ALL:
        raise DataError(f'{where} has "kind": "{ALL}", the name of all kinds together; give it another name.')
    return Question(asked, last["content"], kind)
