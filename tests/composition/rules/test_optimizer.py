import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.verbs.plan import plan


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer=adafactor", "strategy=fsdp"], "optimizer=adafactor does not work with strategy=fsdp"),
        (["optimizer=schedule_free", "schedule=trapezoid"], "schedule=trapezoid decays"),
        (["optimizer.lr=-1"], "optimizer.lr=-1 is not at least 0"),
        (["optimizer.row_beta=1.5"], "optimizer.row_beta=1.5 is not at least 0 and below 1"),
        (["optimizer.lr=0"], "optimizer.lr=0 trains nothing"),
        (["optimizer=sgd", "momentum_schedule=rise_and_fall"], "momentum_schedule=rise_and_fall has no effect"),
        (
            ["momentum_schedule=rise_and_fall", "budget=steps", "budget.steps=900"],
            "momentum_schedule.warmup_steps=400 and momentum_schedule.warmdown_fraction=0.6 take 940 steps",
        ),
        (["budget=steps", "budget.steps=10", "schedule.warmup_steps=8"], "longer than the run of 10 steps"),
    ],
)
def test_a_plan_refuses_what_training_refuses(words, message):
    with pytest.raises(ConfigurationError, match=message):
        plan(["model=llama_3_2_1b", "cluster=h100_8x", *words])
