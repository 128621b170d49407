import pytest

from lmtrain.composition.plan import plan
from lmtrain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer=adafactor", "strategy=fsdp"], "optimizer=adafactor does not work with strategy=fsdp"),
        (["optimizer=schedule_free", "schedule=trapezoid"], "schedule=trapezoid decays"),
        (["optimizer.lr=-1"], "optimizer.lr=-1 is negative; nearest valid: 0"),
        (["optimizer.row_beta=1.5"], "optimizer.row_beta=1.5 is not at least 0 and below 1"),
        (["budget=steps", "budget.steps=10", "schedule.warmup_steps=8"], "longer than the run of 10 steps"),
    ],
)
def test_a_plan_refuses_what_training_refuses(words, message):
    with pytest.raises(ConfigurationError, match=message):
        plan(["model=llama_3_2_1b", "cluster=h100_8x", *words])
