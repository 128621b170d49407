from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.model.model_facts import LinearBytes, ModelFacts
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.training_plan.fit import (
    Setting,
    fits,
    largest_micro_batch,
    memory_of,
    num_at_end,
)
from lmtrain.run.planning.known_models import model_facts
from lmtrain.run.planning.setting import fit_setting, planned_setting
from tests import facts
from tests.configs import config_of

MILLION = 10**6
SETTING = Setting(
    facts=ModelFacts(
        shape=ModelShape(MILLION, 0, MILLION, MILLION, ()),
        components={},
        parameters=TrainedParameters(
            num_total=MILLION, num_hidden_matrix=MILLION, num_largest_block=100_000, num_outside_blocks=0
        ),
        activations=LinearBytes(fixed=0.0, per_sequence=1e6),
        workspace=LinearBytes(fixed=0.0, per_sequence=1e6),
        workspace_of_many=LinearBytes(fixed=0.0, per_sequence=1e6),
        block_workspace=LinearBytes(fixed=0.0, per_sequence=1e6),
        block_workspace_of_many=LinearBytes(fixed=0.0, per_sequence=1e6),
    ),
    precision=facts.precision("fp32").bytes_of,
    optimizer=facts.optimizer("adamw").state,
    is_sharded=False,
    device_bytes=30 * MILLION,
)


def batch(sequences, num_ranks=1):
    asked = Batch(context_tokens=10, tokens_per_step=240 * num_ranks, micro_batch_sequences=sequences)
    return plan_batches(asked, num_ranks=num_ranks)


def test_the_largest_micro_batch_fits_and_the_next_divisor_does_not():
    found = largest_micro_batch(SETTING, batch(24))
    assert found is not None
    assert found.sequences_per_micro_step == 6
    assert found.tokens_per_step == 240
    assert fits(SETTING, found)
    assert not fits(SETTING, batch(8))


@given(
    is_sharded=st.booleans(),
    keeps=st.tuples(st.booleans(), st.booleans()),
    sequences=st.sampled_from([1, 2, 3, 4, 6, 12]),
    num_ranks=st.sampled_from([1, 2, 8]),
    step_bytes=st.sampled_from([0, 12, 40]),
)
def test_one_micro_batch_a_step_never_needs_more_than_two(is_sharded, keeps, sequences, num_ranks, step_bytes):
    setting = replace(
        SETTING,
        is_sharded=is_sharded,
        keeps_gradients=keeps[0],
        keeps_whole_gradients=keeps[1],
        optimizer=replace(SETTING.optimizer, step_bytes=step_bytes),
    )
    one = replace(batch(sequences, num_ranks), accumulation_micro_steps=1)
    two = replace(one, accumulation_micro_steps=2)
    assert memory_of(setting, one).total <= memory_of(setting, two).total
    if keeps == (True, False):
        assert memory_of(setting, one) == memory_of(setting, two)


def test_whole_gradients_between_micro_batches_take_the_place_of_the_shards_own():
    sharded = replace(SETTING, is_sharded=True)
    keeping = replace(sharded, keeps_whole_gradients=True)
    assert memory_of(sharded, batch(12, 4)).gradients == MILLION
    assert memory_of(keeping, batch(12, 4)).gradients == 4 * MILLION
    assert memory_of(keeping, batch(24, 4)) == memory_of(sharded, batch(24, 4))
    busy = replace(keeping, optimizer=replace(SETTING.optimizer, step_bytes=120))
    assert memory_of(busy, batch(12, 4)).gradients == MILLION, "they are gone at the step"


@pytest.mark.parametrize(
    ("model", "num_first", "num_last"),
    [
        ("llama_3_8b", 128_256 * 4096, 128_256 * 4096 + 4096),
        ("llama_3_2_1b", 128_256 * 2048, 128_256 * 2048 + 2048),  # tied: the table is on both
        ("gpt2_124m", (50_257 + 1024) * 768, 50_257 * 768 + 2 * 768),  # positions on the first, tied
    ],
)
def test_the_ends_of_a_pipeline_hold_the_embedding_and_the_head(model, num_first, num_last):
    config = config_of(f"model={model}", "cluster=h100_8x", "precision=bf16_mixed", "optimizer=adamw")
    found = model_facts(config, planned_setting(config))
    assert (num_at_end(found, is_first=True), num_at_end(found, is_first=False)) == (num_first, num_last)
    config = config.changed(strategy={"_target_": "lmtrain.parallel.pipeline.pipeline", "num_stages": 4})
    blocks = found.parameters.num_total - found.parameters.num_outside_blocks
    weights = memory_of(fit_setting(planned_setting(config), found), batch(24)).weights / 4
    assert weights - blocks // 4 in (num_first, num_last)
