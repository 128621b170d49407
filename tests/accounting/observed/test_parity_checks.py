import json
import math

from lmtrain.accounting.observed.parity_checks import Parity, RankDifference, in_order


def difference(
    step: int, kind, *, largest: float = 0.0, scale: float = 1.0, ranks: tuple[int, ...] = ()
) -> RankDifference:
    return RankDifference(step=step, kind=kind, name="head", largest=largest, scale=scale, ranks=ranks)


def parity(*differences: RankDifference) -> Parity:
    return Parity(strategy="ddp", num_ranks=2, num_steps=2, tolerance=1e-4, differences=in_order(differences))


def test_the_first_difference_is_that_of_the_cause() -> None:
    loss, gradient, weight = (
        difference(step, kind, largest=1.0, ranks=(1,)) for step, kind in ((2, "loss"), (1, "gradient"), (1, "weight"))
    )
    found = parity(weight, loss, gradient, difference(1, "loss"))
    assert found.first == gradient
    assert parity(difference(1, "loss")).first is None


def test_a_difference_from_nothing_and_a_nan_are_the_worst() -> None:
    of_nothing = difference(1, "gradient", largest=1e-9, scale=0.0)
    nan = difference(2, "gradient", largest=math.nan, ranks=(0,))
    found = parity(difference(1, "gradient", largest=0.5), of_nothing, difference(2, "gradient", largest=9.0), nan)
    assert found.worst(1, "gradient") == of_nothing
    assert found.worst(2, "gradient") is nan
    assert found.worst(2, "loss") is None
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (plain["is_equal"], plain["first"]["step"], plain["first"]["largest"]) == (False, 2, "nan")
    assert plain["num_compared"] == 4
