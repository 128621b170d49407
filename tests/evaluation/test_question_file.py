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


def test_the_name_of_all_kinds_together_is_no_kind(tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps({"messages": [USER, RIGHT], "kind": "all"}))
    with pytest.raises(DataError, match=r'asked\.jsonl:1 has "kind": "all", the name of all kinds together'):
        read_questions(path)


def test_a_text_holds_any_end_of_a_line(tmp_path):
    path = tmp_path / "asked.jsonl"
    asked = {"messages": [{**USER, "content": "1\u2028+ 1\x85?"}, RIGHT]}
    path.write_text(json.dumps(asked, ensure_ascii=False) + "\r\n", newline="")
    assert read_questions(path)[0].messages == asked["messages"][:1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no line"),
        ("{", "asked.jsonl:1 is no JSON"),
        ("[]", 'has no "messages" of a question and its answer'),
        (json.dumps({"messages": [USER]}), 'has no "messages" of a question and its answer'),
        (json.dumps({"messages": [USER, USER]}), "does not end in an assistant's turn with text"),
        (json.dumps({"messages": [USER, {**RIGHT, "content": " "}]}), "does not end in an assistant's turn with text"),
        (json.dumps({"messages": [USER, USER, RIGHT]}), "asked.jsonl:1: .* two user turns in a row"),
        (json.dumps({"messages": [{"role": "bot", "content": "1"}, RIGHT]}), "asked.jsonl:1: "),
    ],
)
def test_a_line_without_a_right_answer_is_refused(tmp_path, text, said):
    path = tmp_path / "asked.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        read_questions(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_questions(tmp_path / "nowhere")
