import math

import pytest

from lmtrain.evaluation.answer_scores import Answered, Question, score_answers


def test_an_answer_is_right_where_it_is_the_text_and_ended():
    asked = [Question([], answer, kind) for answer, kind in (("a", "x"), ("b", "x"), ("b", "x"), ("b", "y"))]
    answered = [Answered(" a\n", True), Answered("b", False), Answered("b c", True), Answered("b", True)]
    x, y, everything = score_answers(asked, answered)
    assert (x.num_right, x.num_ended, x.num_items, x.num_commonest) == (1, 2, 3, 2)
    assert (x.accuracy, x.ended, x.guess) == pytest.approx((1 / 3, 2 / 3, 2 / 3))
    assert x.standard_error == pytest.approx(math.sqrt(2) / 3 / math.sqrt(3))
    assert (y.accuracy, y.kind) == (1.0, "y")
    assert (everything.kind, everything.num_right, everything.num_items, everything.num_commonest) == ("all", 2, 4, 3)


def test_equal_answers_with_other_spaces_around_are_one_for_a_guess():
    asked = [Question([], answer) for answer in ("7", "7 ", "8", "7\n")]
    (score,) = score_answers(asked, [Answered("7", True)] * 4)
    assert (score.accuracy, score.guess) == (0.75, 0.75)


def test_a_single_kind_has_no_second_line():
    assert [score.kind for score in score_answers([Question([], "a")], [Answered("", True)])] == ["answers"]
