import pytest

from lmtrain.accounting.observed.time_accounts import TimeBalance
from lmtrain.report.ledger.biggest_lever import biggest_lever
from lmtrain.report.ledger.slow_ranks import RankTime, SlowRanks


def lever(spent, *, ranks=(), compiled=True, steps=100, of=100):
    times = tuple(RankTime(rank=rank, computing=own, data_wait=0.0, waiting=0.0) for rank, own in enumerate(ranks))
    by_rank = SlowRanks(ranks=tuple(sorted(times, key=lambda one: -one.own)), num_steps=3) if ranks else None
    return biggest_lever(
        TimeBalance(seconds=spent), by_rank=by_rank, steps_done=steps, num_steps=of, is_compiled=compiled
    )


def test_it_is_the_largest_kind_but_computing():
    found = lever({"compute": 50.0, "data_wait": 11.0, "setup": 5.0})
    assert found is not None
    assert found.startswith("data wait 17%: raise data.num_workers")
    assert lever({"compute": 50.0}) is None


def test_eager_steps_are_it_where_compiling_would_pay():
    spent = {"compute": 900.0, "evaluation": 100.0}
    assert "evaluation 10%" in str(lever(spent))
    assert str(lever(spent, compiled=False)).startswith("eager mode ")
    assert "compile=auto" in str(lever(spent, compiled=False))
    assert "evaluation 10%" in str(lever(spent, compiled=None)), "a run of before, which does not say"


@pytest.mark.parametrize(("of", "name"), [(100, "evaluation"), (10_000, "eager mode")])
def test_compiling_pays_in_a_run_of_minutes_alone(of, name):
    assert str(lever({"compute": 90.0, "evaluation": 10.0}, compiled=False, of=of)).startswith(name)


def test_a_slow_rank_is_it_where_the_others_wait_for_it():
    spent = {"compute": 50.0, "communication": 40.0, "evaluation": 10.0}
    assert "communication 40%" in str(lever(spent, ranks=(0.5, 0.5, 0.5, 0.5)))
    found = str(lever(spent, ranks=(0.5, 0.5, 0.5, 0.8)))
    assert found.startswith("slow rank 30%: the others wait for rank 3 (computing);")
