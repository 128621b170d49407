import pytest

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.options.parts import ObjectiveFacts
from lmtrain.accounting.training_plan.plan_parts import generation_plan

BATCH = BatchPlan(context_tokens=64, sequences_per_micro_step=16, accumulation_micro_steps=2, num_ranks=1)
RATES = {"flops_per_token": 3e6, "weight_bytes": 4e9}


def test_a_step_writes_and_reads_its_prompts_once_a_group() -> None:
    plan = generation_plan(
        ObjectiveFacts(task="grpo", num_new_tokens=16, copies=8), BATCH, **RATES, memory_bytes_per_second=None
    )
    assert plan is not None
    assert (plan.written_tokens, plan.prompt_tokens) == (32 * 16, 32 * 48 // 8)
    assert plan.flops_per_step == pytest.approx((512 + 192) * 1e6)  # forward: a third
    assert plan.seconds(step_seconds=3.0, tokens_per_step=2048) == pytest.approx(704 / 2048)
