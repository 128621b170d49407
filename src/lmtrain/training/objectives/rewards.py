"""Rewards of written answers that can be checked: by their number, their text, their form, or a function of a person's.

A reward is a function of one answer to one number; `objective.rewards.NAME._target_` names it.
"""

import math
import re
import reprlib
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn, final

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


@final
class RewardScorer:
    """Scores answers; a reward that raises, takes longer than `timeout_seconds` or gives no finite number scores NaN.

    The time limit (None: none) needs the main thread, and does not end C code. A reward's first failure is a warning.
    """

    def __init__(
        self, rewards: Mapping[str, Reward], *, weights: Mapping[str, float], timeout_seconds: float | None
    ) -> None:
        self._rewards, self._timeout = rewards, timeout_seconds
        self._factors = [weights.get(name, 1.0) for name in rewards]
        self._scored: set[str] = set()
        self._warned: set[str] = set()

    def __call__(self, answers: Sequence[WrittenAnswer]) -> tuple[list[list[float]], list[float]]:
        """Return each reward of each answer, and their weighted sums.

        Raises:
            DataError: A reward fails on all answers, and has scored none before.
        """
        problems: dict[str, str] = {}
        each = [[self._score(name, answer, problems) for name in self._rewards] for answer in answers]
        for name, problem in problems.items():
            if name not in self._scored:
                raise DataError(f"objective.rewards.{name} {problem}; correct it and resume.")
            if name not in self._warned:
                counted = "such answers teach nothing; reward/failed counts them"
                warnings.warn(f"objective.rewards.{name} {problem}: {counted}", stacklevel=2)
        self._warned |= problems.keys()
        return each, [sum(one * factor for one, factor in zip(row, self._factors, strict=True)) for row in each]

    def _score(self, name: str, answer: WrittenAnswer, problems: dict[str, str]) -> float:
        value, problem = _given(self._rewards[name], answer, self._timeout)
        if problem:
            on = f"on the answer {reprlib.repr(answer.text)} to {reprlib.repr(answer.question)}"
            problems.setdefault(name, f"{problem} {on}")
        else:
            self._scored.add(name)
        return value


class _TooLong(BaseException):  # which a reward does not catch
    pass


@contextmanager
def _at_most(seconds: float | None) -> Generator[None]:
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> NoReturn:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _given(reward: Reward, answer: WrittenAnswer, timeout_seconds: float | None) -> tuple[float, str]:
    """Return the number, or NaN and what is wrong."""
    try:
        with _at_most(timeout_seconds):
            value: Any = reward(answer)
    except _TooLong:
        return math.nan, f"took longer than {timeout_seconds:g} s"
    except (Exception, SystemExit) as problem:  # noqa: BLE001  a person's code raises anything
        return math.nan, " ".join(f"raised {type(problem).__name__}: {problem}".split())
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not abs(number) <= LARGEST:
        shown = " ".join(reprlib.repr(value).split())
        return math.nan, f"must give one finite number of at most {LARGEST:g}, got {shown}"
    return number, ""


def _last_number(text: str) -> float | None:
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None
