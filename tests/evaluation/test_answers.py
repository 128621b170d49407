import json
import math

import pytest

from lmtrain.errors import DataError
from lmtrain.evaluation.answers import Answered, Question, read_questions, score_answers


def test_an_answer_is_right_where_it_is_the_text_and_ended():
    asked = [Question([], answer, kind) for answer, kind in (("a", "x"), ("b", "x"), ("b", "x"), ("b", "y"))]
    answered = [Answered(" a\n", True), Answered("b", False), Answered("b c", True), Answered("b", True)]
    x, y, everything = score_answers(asked, answered)
    assert (x.num_right, x.num_ended, x.num_items, x.num_commonest) == (1, 2, 3, 2)
    assert (x.accuracy, x.ended, x.guess) == pytest.approx((1 / 3, 2 / 3, 2 / 3))
    assert x.standard_error == pytest.approx(math.sqrt(2) / 3 / math.sqrt(3))
    assert (y.accuracy, y.label) == (1.0, "y")
    assert (everything.label, everything.num_right, everything.num_items, everything.num_commonest) == ("all", 2, 4, 3)


def test_equal_answers_with_other_spaces_around_are_one_for_a_guess():
    asked = [Question([], answer) for answer in ("7", "7 ", "8", "7\n")]
    (score,) = score_answers(asked, [Answered("7", True)] * 4)
    assert (score.accuracy, score.guess) == (0.75, 0.75)


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
        ("", "is empty"),
        ("{", "asked.jsonl:1 is not JSON"),
        ("[]", "is empty"),
        (json.dumps({"messages": [USER]}), "must end in an assistant"),
        (json.dumps({"messages": [RIGHT]}), "messages: not a list"),
        (json.dumps({"messages": [USER, USER]}), "must end in an assistant"),
        (json.dumps({"messages": [USER, {**RIGHT, "content": " "}]}), "must end in an assistant"),
        (json.dumps({"messages": [USER, USER, RIGHT]}), "asked.jsonl:1: .* two user turns in a row"),
        (json.dumps({"messages": [USER, RIGHT], "kind": "all"}), 'must not be "all"'),
        (json.dumps({"messages": [{"role": "bot", "content": "1"}, RIGHT]}), "asked.jsonl:1: "),
    ],
)
def test_a_line_without_a_right_answer_is_refused(tmp_path, text, said):
    path = tmp_path / "asked.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        read_questions(path)
