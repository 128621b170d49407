import math
import random

import pytest

from lmtrain.search.importance import Axis, axes_of, importances


def drawn(num: int) -> tuple[list[dict[str, str]], list[float]]:
    """Draw choices whose score follows from the learning rate, a little from the schedule, not from the decay."""
    dice = random.Random(1)
    choices = [
        {
            "lr": f"{10 ** dice.uniform(-4, -2):.6g}",
            "decay": f"{dice.uniform(0, 0.3):.6g}",
            "schedule": dice.choice("ab"),
        }
        for _ in range(num)
    ]
    scores = [(math.log10(float(each["lr"])) + 3) ** 2 + 0.05 * (each["schedule"] == "a") for each in choices]
    return choices, scores


def test_the_key_behind_the_scores_has_the_largest_share_and_few_trials_have_none() -> None:
    found = importances(*drawn(30))
    assert next(iter(found)) == "lr"
    assert found["lr"].share > 0.8
    assert sum(each.share for each in found.values()) == pytest.approx(1.0)
    assert all(0 <= each.low <= each.share <= each.high <= 1 for each in found.values())
    assert found["lr"].low > 0.7
    assert importances(*drawn(9)) == {}


def test_equal_scores_have_no_importance() -> None:
    choices, _ = drawn(12)
    assert importances(choices, [1.0] * 12) == {}


def test_axes_are_of_keys_with_several_values_and_wide_ones_are_logarithmic() -> None:
    choices = [{"lr": "1e-4", "width": "8", "same": "1", "schedule": "b"}, {"lr": "1e-2", "width": "16", "same": "1"}]
    assert axes_of(choices) == {"lr": Axis(1e-4, 1e-2, is_log=True), "width": Axis(8.0, 16.0)}
    assert not axes_of(choices, {"lr": "interval(1e-4,1e-2)"})["lr"].is_log
    named = axes_of([{"schedule": "b"}, {"schedule": "a"}])["schedule"]
    assert [named.place(name) for name in ("a", "b")] == [0.25, 0.75]
    assert Axis(1e-4, 1e-2, is_log=True).place("1e-3") == pytest.approx(0.5)
    amounts = ["1M", "100M", "10M"]
    budgets = axes_of(
        [{"budget.tokens": tokens, "budget.hours": "30min"} for tokens in amounts] + [{"budget.hours": "2"}]
    )
    assert [budgets["budget.tokens"].place(tokens) for tokens in amounts] == pytest.approx([0.0, 1.0, 0.5])
    assert (budgets["budget.hours"].low, budgets["budget.hours"].high) == (0.5, 2.0)
