import math

import pytest

from lmtrain.accounting.options.ranges import COMMON, RATE, Range


@pytest.mark.parametrize(
    ("allowed", "good", "bad", "rule"),
    [
        (COMMON["momentum"], [0.0, 0.999], [-0.1, 1.0, math.nan], "not at least 0 and below 1; 0.95 is usual"),
        (RATE, [0.0, 1e4], [-1.0, math.inf], "not at least 0 and at most 10,000; 0.001 to 0.5 is usual"),
        (COMMON["weight_decay"], [0.0, 1e9], [-1e-9, math.inf], "not a finite number of at least 0; 0.1 is usual"),
        (
            Range(low=-math.inf, high=0.0, is_open=False, usual="-0.8"),
            [-0.8, 0.0],
            [0.1],
            "not a finite number of at most 0; -0.8 is usual",
        ),
    ],
)
def test_a_refusal_has_the_rule_and_what_is_usual(allowed, good, bad, rule):
    assert [allowed.refusal(value) for value in good] == [None] * len(good)
    assert [allowed.refusal(value) for value in bad] == [rule] * len(bad)


def test_an_epsilon_says_why_it_is_not_zero():
    assert "keeps a gradient of 0 from being divided by 0" in (COMMON["eps"].refusal(0.0) or "")
