import pytest

from lmtrain.accounting.training_plan.plan_parts import planned_offload
from lmtrain.run.planning.plan import planned_runs

WORDS = (
    *("model=llama_3_1_8b", "cluster=h200_1x", "strategy=single", "optimizer=adamw", "precision=bf16_mixed"),
    *("recompute=every_block", "loss=chunked", "batch.context_tokens=8192", "batch.tokens_per_step=524288"),
    *("batch.micro_batch_sequences=1", "budget=steps", "budget.steps=1000", "data=synthetic"),
)


def test_state_goes_both_ways_at_the_share_of_every_link():
    assert planned_offload(48 * 10**9, device="NVIDIA H100 80GB HBM3").seconds == pytest.approx(2.0)  # 64 GB/s, 75%
    assert planned_offload(48 * 10**9, device="an unknown one").seconds is None


def test_a_plan_counts_a_piece_on_the_device_and_the_rest_on_the_host_and_its_advice_offers_it():
    kept, away = (planned_runs([*WORDS, *words])[0] for words in ((), ("optimizer_cpu_offload=true",)))
    memory, of_kept = away.plan.memory, kept.plan.memory
    speed, of_speed, offload = away.plan.speed, kept.plan.speed, away.plan.offload
    assert memory
    assert of_kept
    assert speed
    assert of_speed
    assert offload
    assert offload.seconds
    assert of_kept.optimizer == offload.host_bytes == 8 * 8_030_261_248
    assert memory.optimizer == 8 * 525_340_672  # the head and the last norm, larger than a piece
    assert speed.step_seconds - of_speed.step_seconds == pytest.approx(offload.seconds)
    assert (kept.plan.fits, away.plan.fits) == (False, True)
    assert any(line.startswith("fits with optimizer_cpu_offload=true") for line in kept.advice.lines)
    assert away.plan.to_json()["optimizer_cpu_offload"]["host_bytes"] == offload.host_bytes
