import pytest

from lmtrain.accounting.training_plan.plan_parts import generation_plan

SETTINGS = {
    "num_new_tokens": 16,
    "copies": 8,
    "num_uses": 1,
    "rows_per_step": 32,
    "micro_steps": 2,
    "context_tokens": 64,
    "flops_per_token": 3e6,
    "weight_bytes": 4e9,
}


def test_a_step_writes_and_reads_its_prompts_once_a_group() -> None:
    plan = generation_plan(**SETTINGS, memory_bytes_per_second=None)
    assert (plan.written_tokens, plan.prompt_tokens) == (32 * 16, 32 * 48 // 8)
    assert plan.flops_per_step == pytest.approx((512 + 192) * 1e6)  # forward: a third
    assert plan.seconds(step_seconds=3.0, tokens_per_step=2048) == pytest.approx(704 / 2048)
