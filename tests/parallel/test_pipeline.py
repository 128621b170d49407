"""A pipeline is planned by its facts, and refused by a run."""

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.parallel.pipeline import pipeline, pipeline_facts


def test_a_run_refuses_it_and_names_the_nearest_strategy() -> None:
    with pytest.raises(ConfigurationError, match=r"strategy=pipeline .*, 4 stages, 8 ranks.*strategy=fsdp_tensor"):
        pipeline(num_ranks=8, num_stages=4)
    with pytest.raises(ConfigurationError, match=r", 1 stage, 1 rank\)"):
        pipeline(num_ranks=1, num_stages=1)


def test_facts_are_no_choice_of_a_plan_for_ranks_that_train() -> None:
    facts = pipeline_facts(num_stages=4)
    assert not facts.replicates
    assert not facts.takes_many


def test_copies_of_a_stage_average_its_gradients_alone() -> None:
    sent = list(pipeline_facts(num_stages=4).collectives(num_ranks=8, gathered=0, num_gradients=800, micro_steps=2))
    assert [(each.group, each.num_ranks, each.stride) for each in sent] == [("copies", 2, 4)]
    assert sent[0].reduced_bytes == 800 * 4 / 4  # a ring of two sends all of them once


def test_stages_divide_the_ranks() -> None:
    with pytest.raises(ConfigurationError, match=r"strategy.num_stages=3 does not divide 8 ranks.*nearest valid: 2"):
        pipeline_facts(num_stages=3).require_ranks(8)
