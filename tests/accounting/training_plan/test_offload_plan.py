import pytest

from lmtrain.accounting.training_plan.plan_parts import planned_offload

WORDS = (
    *("model=llama_3_1_8b", "cluster=h200_1x", "strategy=single", "optimizer=adamw", "precision=bf16_mixed"),
    *("recompute=every_block", "loss=chunked", "batch.context_tokens=8192", "batch.tokens_per_step=524288"),
    *("batch.micro_batch_sequences=1", "budget=steps", "budget.steps=1000", "data=synthetic"),
)


def test_state_goes_both_ways_at_the_share_of_every_link():
    assert planned_offload(48 * 10**9, device="NVIDIA H100 80GB HBM3").seconds == pytest.approx(2.0)  # 64 GB/s, 75%
    assert planned_offload(48 * 10**9, device="an unknown one").seconds is None
