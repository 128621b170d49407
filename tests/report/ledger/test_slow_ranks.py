from lmtrain.report.ledger.slow_ranks import slow_ranks


def rows(*, own, waiting, data_wait=0.0):
    attempt = {"name": "attempt"}
    ledger = [{"name": "ledger", "step": step, "data_wait": data_wait * step} for step in (0, 10)]
    return [
        *(attempt, {"name": "traced_step", "own_seconds": 9.0, "waiting_seconds": 0.0}),  # of an earlier attempt
        *(attempt, *ledger, {"name": "traced_step", "own_seconds": own, "waiting_seconds": waiting}),
    ]


def test_the_rank_with_more_work_than_the_median_is_named_with_its_cause():
    found = slow_ranks(
        [
            (0, rows(own=1.0, waiting=1.0)),
            (1, rows(own=2.0, waiting=0.0)),
            (2, rows(own=1.0, waiting=0.5, data_wait=0.5)),
            (3, rows(own=1.0, waiting=1.0)),
        ]
    )
    assert found is not None
    assert [(one.rank, found.cause(one)) for one in found.slow] == [(1, "computing"), (2, "data wait")]
    assert found.to_json()["slow"] == [1, 2]
    assert found.num_steps == 1


def test_even_ranks_are_not_named_and_one_rank_alone_is_not_compared():
    found = slow_ranks([(rank, rows(own=1.0 + rank / 100, waiting=0.1)) for rank in range(4)])
    assert found is not None
    assert found.slow == []
    assert slow_ranks([(0, rows(own=1.0, waiting=0.0))]) is None
