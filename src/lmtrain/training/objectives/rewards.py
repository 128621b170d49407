"""Rewards of written answers that can be checked: by their number, their text, their form, or a function of a person's.

A reward is a function of one answer to one number; `objective.rewards.NAME._target_` names it.
"""

import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lmtrain.errors import ConfigurationError, DataError

NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
LARGEST: Final = 1e30  # their sums and squares are float32


@dataclass(frozen=True, kw_only=True)
class WrittenAnswer:
    """An answer's text, the conversation before it, the data's own answer, and whether the model ended it."""

    text: str
    question: str
    expected: str
    ended: bool


Reward = Callable[[WrittenAnswer], float]


def right_text(answer: WrittenAnswer) -> float:
    """Give 1 for the data's own answer, spaces around it aside."""
    return float(answer.ended and answer.text.strip() == answer.expected.strip())


def right_number(answer: WrittenAnswer) -> float:
    """Give 1 where the last number of the answer is that of the data's own one."""
    given, wanted = _last_number(answer.text), _last_number(answer.expected)
    return float(answer.ended and given is not None and given == wanted)


def near_text(answer: WrittenAnswer) -> float:
    """Give the share of the longer text's characters that are right in their places: something to climb on."""
    given, wanted = answer.text.strip(), answer.expected.strip()
    same = sum(one == other for one, other in zip(given, wanted, strict=False))
    return same / max(len(given), len(wanted), 1)


def whole_answer(answer: WrittenAnswer) -> float:
    """Give 1 where the model ended its answer within the tokens allowed."""
    return float(answer.ended)


def matches(answer: WrittenAnswer, *, pattern: str) -> float:
    """Give 1 where the whole answer has the form of a regular expression."""
    try:
        return float(re.fullmatch(pattern, answer.text, re.DOTALL) is not None)
    except re.error as problem:
        raise ConfigurationError(f"pattern={pattern!r} is not a regular expression: {problem}.") from problem


def score_answers(
    answers: Sequence[WrittenAnswer], rewards: Mapping[str, Reward], *, weights: Mapping[str, float]
) -> tuple[list[list[float]], list[float]]:
    """Return each reward of each answer, and their weighted sums.

    Raises:
        DataError: A reward raises, or gives no finite number.
    """
    each = [[_given(name, reward, answer) for name, reward in rewards.items()] for answer in answers]
    factors = [weights.get(name, 1.0) for name in rewards]
    return each, [sum(one * factor for one, factor in zip(row, factors, strict=True)) for row in each]


def _given(name: str, reward: Reward, answer: WrittenAnswer) -> float:
    on = f"on the answer {reprlib.repr(answer.text)} to {reprlib.repr(answer.question)}"
    try:
        value: Any = reward(answer)
    except (Exception, SystemExit) as problem:  # a person's code raises anything
        raised = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise DataError(f"objective.rewards.{name} raised {raised} {on}; correct it and resume.") from problem
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not abs(number) <= LARGEST:
        shown = " ".join(reprlib.repr(value).split())
        raise DataError(
            f"objective.rewards.{name} must give one finite number of at most {LARGEST:g}, got {shown} {on}; correct "
            "it and resume."
        )
    return number


def _last_number(text: str) -> float | None:
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None
