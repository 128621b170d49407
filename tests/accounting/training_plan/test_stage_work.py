import pytest

from lmtrain.accounting.training_plan.stages import (
    START_SECONDS,
    EvaluationWork,
    PreparationWork,
)

SIZE = {"own_split": 1_000, "context_tokens": 256, "text_bytes_per_token": 4.0}


def seconds_of(work, read_tokens, *, per_token=1e-6, weight_bytes=0.0, rate=None):
    return work.seconds(
        read_tokens, training_seconds_per_token=per_token, weight_bytes=weight_bytes, memory_bytes_per_second=rate
    )


def test_a_budget_of_training_tokens_takes_held_out_ones_on_top():
    work = PreparationWork(
        train_tokens=900, validation_share=0.05, test_share=0.05, text_bytes_per_token=4.0, bytes_per_token=2
    )
    assert (work.num_tokens, work.validation_tokens, work.test_tokens) == (pytest.approx(1_000), 50, 50)
    assert (work.text_bytes, work.kept_bytes, work.disk_bytes) == (4_000, 2_100, 2_100)


def test_a_forward_pass_takes_a_third_of_a_training_step_s_time():
    work = EvaluationWork(scores_own_split=True, text_bytes=4_000)
    assert (read := work.read_tokens(**SIZE)) == 2_000
    assert seconds_of(work, read) == pytest.approx(START_SECONDS + 2_000e-6 / 3)
