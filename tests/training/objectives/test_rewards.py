import math
import sys
from typing import NoReturn

import pytest
import torch

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.training.objectives.rewards import (
    WrittenAnswer,
    matches,
    near_text,
    right_number,
    right_text,
    score_answers,
    whole_answer,
)


def answer(text: str, expected: str = "12", *, ended: bool = True) -> WrittenAnswer:
    return WrittenAnswer(text=text, question="7 + 5?", expected=expected, ended=ended)


def raised(problem: Exception) -> NoReturn:
    raise problem


@pytest.mark.parametrize(
    ("reward", "given", "value"),
    [
        (right_text, answer(" 12 "), 1),
        (right_text, answer("12", ended=False), 0),
        (right_number, answer("so #### 12.0"), 1),
        (right_number, answer("12 or 13"), 0),
        (right_number, answer("1,012", "1012"), 1),
        (right_number, answer("none"), 0),
        (near_text, answer("abXd", "abcd"), 0.75),
        (near_text, answer("", ""), 0),
        (whole_answer, answer("x", ended=False), 0),
    ],
)
def test_rewards_that_can_be_checked(reward, given, value) -> None:
    assert reward(given) == value


def test_a_form_is_of_the_whole_answer() -> None:
    assert [matches(answer(text), pattern=r"\d+") for text in ("12", "12 x")] == [1, 0]
    with pytest.raises(ConfigurationError, match="not a regular expression"):
        matches(answer("1"), pattern="(")


def test_rewards_are_summed_with_their_weights() -> None:
    each, sums = score_answers(
        [answer("12"), answer("9")], {"text": right_text, "end": whole_answer}, weights={"end": 0.5}
    )
    assert (each, sums) == ([[1, 1], [0, 1]], [1.5, 0.5])


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda _: 1 / 0, "objective.rewards.mine raised ZeroDivisionError: division by zero on the answer '12' to"),
        (lambda _: math.nan, "objective.rewards.mine gave nan on the answer '12' to '7 [+] 5[?]'; a reward is one"),
        (lambda _: None, "objective.rewards.mine gave None on the answer"),
        (lambda _: torch.tensor([1.0, 2.0]), r"objective.rewards.mine gave tensor\(\[1., 2.\]\) on the answer"),
        (
            lambda _: 10**400,
            "objective.rewards.mine gave 1000.*000 on the answer .* one finite number, 1e[+]30 at most",
        ),
        (lambda _: raised(RuntimeError("two\nlines")), "raised RuntimeError: two lines on the answer"),
        (lambda _: sys.exit(), "objective.rewards.mine raised SystemExit"),
    ],
)
def test_a_reward_that_fails_ends_the_run_in_one_line(reward, message) -> None:
    with pytest.raises(DataError, match=message) as refused:
        score_answers([answer("12")], {"mine": reward}, weights={})
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 4
