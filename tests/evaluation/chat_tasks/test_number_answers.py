import re

import pytest

from lmtrain.evaluation.chat_tasks.number_answers import arithmetic_items, number_after_mark, spelling_items


@pytest.mark.parametrize(
    ("text", "number"),
    [("so #### 1,200.", "1200"), ("####-3", "-3"), ("#### 2.5 apples", "2.5"), ("it is 7", None), ("#### x", None)],
)
def test_the_number_is_the_one_after_the_mark(text, number):
    assert number_after_mark(text) == number


def test_made_questions_have_their_right_answers():
    for item in arithmetic_items():
        first, sign, second = re.findall(r"is (\d+) (\w+) (\d+)\?", item.text)[0]
        right = {"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}[sign](int(first), int(second))
        assert item.is_right(f"#### {right}")
        assert not item.is_right(f"#### {right + 1}")
    for item in spelling_items(["banana", "kiwi", "no"]):
        letter, word = re.findall(r"many (\w) are in (\w+)\?", item.text)[0]
        assert word != "no"
        assert item.is_right(f"#### {word.count(letter)}")
