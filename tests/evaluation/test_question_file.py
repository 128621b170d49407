import json

import pytest

from lmtrain.errors import DataError
from lmtrain.evaluation.question_file import read_questions

USER, RIGHT = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}


def test_the_last_turn_of_each_line_is_the_right_answer(tmp_path):
    lines = [{"messages": [USER, RIGHT]}, {"messages": [USER, RIGHT, USER, RIGHT], "kind": "sum"}]
    path = tmp_path / "asked.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    first, second = read_questions(path)
    assert (first.messages, first.answer, first.kind) == ([USER], "2", "answers")
    assert (second.messages, second.answer, second.kind) == ([USER, RIGHT, USER], "2", "sum")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no line"),
        ("{", "asked.jsonl:1 is no JSON"),
        ("[]", 'has no "messages" of a question and its answer'),
        (json.dumps({"messages": [USER]}), 'has no "messages" of a question and its answer'),
        (json.dumps({"messages": [USER, USER]}), "does not end in an assistant's turn with text"),
        (json.dumps({"messages": [USER, {**RIGHT, "content": " "}]}), "does not end in an assistant's turn with text"),
    ],
)
def test_a_line_without_a_right_answer_is_refused(tmp_path, text, said):
    path = tmp_path / "asked.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        read_questions(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_questions(tmp_path / "nowhere")
