import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.errors import ConfigurationError


def test_a_million_token_step_over_eight_ranks():
    plan = plan_batches(Batch(context_tokens=1024, tokens_per_step=1_048_576, micro_batch_sequences=8), num_ranks=8)
    assert plan.accumulation_micro_steps == 16
    assert plan.tokens_per_step == 1_048_576
    assert plan.tokens_per_step * 5000 == 5_242_880_000
    assert (plan.sequences_per_step, plan.sequences_per_rank) == (1024, 128)


def test_without_a_micro_batch_a_rank_takes_its_share_at_once():
    plan = plan_batches(Batch(context_tokens=256, tokens_per_step=2048), num_ranks=2)
    assert (plan.sequences_per_micro_step, plan.accumulation_micro_steps) == (4, 1)


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("context_tokens", "is below 1. Did you mean 1"),
        ("tokens_per_step", r"is not a multiple of 4 .*. Did you mean 4\?"),
        ("micro_batch_sequences", "is below 1. Did you mean 1"),
    ],
)
def test_values_below_one_are_refused_by_key(setting, rule):
    values = {"context_tokens": 4, "tokens_per_step": 4, "micro_batch_sequences": 1} | {setting: 0}
    with pytest.raises(ConfigurationError, match=rf"batch\.{setting}=0 {rule}"):
        plan_batches(Batch(**values), num_ranks=1)


@given(st.integers(1, 64), st.integers(1, 5000), st.integers(1, 9), st.integers(1, 9))
def test_every_plan_is_exact_and_every_suggestion_works(context, tokens, micro_batch, num_ranks):
    batch = Batch(context_tokens=context, tokens_per_step=tokens, micro_batch_sequences=micro_batch)
    try:
        assert plan_batches(batch, num_ranks=num_ranks).tokens_per_step == tokens
    except ConfigurationError as refusal:
        nearest = re.search(r"Did you mean (\d+)", str(refusal))
        assert nearest is not None
        suggested = Batch(
            context_tokens=context, tokens_per_step=int(nearest.group(1)), micro_batch_sequences=micro_batch
        )
        assert plan_batches(suggested, num_ranks=num_ranks).tokens_per_step == int(nearest.group(1))


def test_steps_pass_over_the_batches_left_out_and_know_those_behind_them() -> None:
    plan = plan_batches(Batch(context_tokens=8, tokens_per_step=32, left_out=(5, 2, 3, 5)))
    assert [plan.number_of(step) for step in range(6)] == [0, 1, 4, 6, 7, 8]
    assert plan.without([1]).left_out == (1, 2, 3, 5)
    assert [plan.left_out_before(step) for step in range(5)] == [(), (), (), (2, 3), (2, 3, 5)]
    with pytest.raises(ConfigurationError, match="below 0"):
        plan_batches(Batch(context_tokens=8, tokens_per_step=32, left_out=(-1,)))
