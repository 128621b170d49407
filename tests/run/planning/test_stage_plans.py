import pytest

from lmtrain.accounting.training_plan.stages import COMPILED_START_SECONDS, START_SECONDS, EvaluationWork
from lmtrain.run.planning.stage_plans import evaluated, exported, planned_training

WORDS = ["cluster=h100_8x", "cluster.usd_per_gpu_hour=3", "cluster.mfu=0.5", "trainer.devices=8", "strategy=ddp"]
RUN = [*WORDS, "model=llama_3_2_1b", "batch.context_tokens=4096", "batch.tokens_per_step=1048576", "budget.tokens=10B"]


@pytest.fixture(name="training", scope="module")
def a_training():
    return planned_training([*RUN, "tokenizer.vocab_size=128256", "tokenizer.sample_bytes=64MB"], learns=True)


def test_an_evaluation_computes_on_one_device_at_a_third_of_a_step_and_is_paid_for_all(training):
    plan = training.plan
    step_seconds_of_a_token = plan.speed.step_seconds / plan.batch.tokens_per_step
    stage = evaluated(training, EvaluationWork(text_bytes=486_000_000, is_bf16=True))
    in_fp32 = evaluated(training, EvaluationWork(text_bytes=486_000_000))
    assert stage.tokens == pytest.approx(100e6)
    assert stage.seconds is not None
    assert in_fp32.seconds is not None
    computing = stage.seconds - START_SECONDS
    assert computing == pytest.approx(100e6 * step_seconds_of_a_token * 8 / 3, rel=1e-6)
    assert stage.usd == pytest.approx(stage.seconds / 3600 * 8 * 3)
    assert (in_fp32.seconds - START_SECONDS) / computing == pytest.approx(989.4 / 66.9)


def test_a_training_has_its_start_its_validation_and_no_more_files_than_steps(training):
    stage, plan = training.steps(), training.plan
    assert stage.basis == "stated"
    assert plan.evaluation is not None, "of text not prepared yet"
    assert stage.seconds == pytest.approx(plan.seconds + COMPILED_START_SECONDS)
    assert stage.disk_bytes - stage.kept_bytes == plan.checkpoints.checkpoint_bytes
    short = planned_training([*RUN[:-1], "budget.steps=1"], learns=True).steps()
    assert short.disk_bytes == short.kept_bytes == plan.checkpoints.checkpoint_bytes


def test_an_export_is_as_large_as_its_weights_in_their_format(training):
    values = training.plan.shape.num_parameters
    assert exported(training, bytes_per_value=None).disk_bytes == 4 * values
    assert exported(training, bytes_per_value=2).disk_bytes == 2 * values
