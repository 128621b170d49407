import random
from collections.abc import Sequence
from typing import get_args

import pytest

from lmtrain.accounting.model.memory import Schedule
from lmtrain.accounting.observed.parity_checks import Parity, RankDifference
from lmtrain.errors import ConfigurationError
from lmtrain.run.execution.parity_hunt import Words, accepted, draw, hunt

EQUAL = Parity(strategy="fsdp", num_ranks=4, num_steps=1, tolerance=1e-4, differences=())
WRONG = RankDifference(step=1, kind="loss", largest=1.0, scale=6.0, ranks=(0,))
DIFFERENT = Parity(strategy="fsdp", num_ranks=4, num_steps=1, tolerance=1e-4, differences=(WRONG,))


def test_a_seed_draws_the_same_words_and_every_strategy_comes() -> None:
    def drawn(seed: int) -> list[Words]:
        numbers = random.Random(seed)
        return [draw(numbers, num_ranks=4) for _ in range(200)]

    assert drawn(1) == drawn(1) != drawn(2)
    strategies = {words[0] for words in drawn(1)}
    assert {f"strategy={name}" for name in ("ddp", "fsdp", "hsdp", "tensor", "context", "pipeline")} <= strategies
    schedules = {word for words in drawn(1) for word in words if word.startswith("strategy.schedule=")}
    assert schedules == {f"strategy.schedule={name}" for name in get_args(Schedule)}
    assert not strategies & {"strategy=single", "strategy=auto", "strategy=diloco"}


def test_refused_draws_are_drawn_again_and_the_last_refusal_is_raised_where_all_are() -> None:
    def only_fsdp(words: Words) -> None:
        if words[0] != "strategy=fsdp":
            raise ConfigurationError("not this one")

    assert accepted(random.Random(0), only_fsdp, num_ranks=4)[0] == "strategy=fsdp"

    def never(words: Words) -> None:
        raise ConfigurationError("none")

    with pytest.raises(ConfigurationError, match="none"):
        accepted(random.Random(0), never, num_ranks=4)


def test_a_failing_draw_keeps_only_the_words_that_its_failure_needs() -> None:
    def compare(drawn: Sequence[Words]) -> list[Parity]:
        if any("strategy.shard_size=3" in words for words in drawn):
            raise ConfigurationError("3 does not divide 4")
        needed = {"strategy.shard_size=2", "recompute=selective"}
        return [DIFFERENT if needed <= {*words} else EQUAL for words in drawn]

    good = ("strategy=ddp", "batch.context_tokens=32")
    bad = ("strategy=hsdp", "strategy.shard_size=2", "strategy.reshard_after_forward=true", "recompute=selective")
    (first, equal), (words, found) = hunt([good, bad], compare)
    assert (first, equal.is_equal) == (good, True)
    assert not found.is_equal
    assert {*words} == {
        "strategy=hsdp", "strategy.shard_size=2", "recompute=selective",
        "batch.micro_batch_sequences=1", "model.num_layers=1",
    }  # fmt: skip
