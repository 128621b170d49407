import pytest

from lmtrain.cli.commands.plan import plan
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.run_config import read_config
from lmtrain.run.validators.optimizer import rate_line
from tests.tiny import PROJECT


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer=adafactor", "strategy=fsdp"], "optimizer=adafactor does not work with strategy=fsdp"),
        (["optimizer=schedule_free", "schedule=trapezoid"], "schedule=trapezoid decays"),
        (["optimizer.lr=-1"], "optimizer.lr=-1 is not at least 0"),
        (["optimizer.row_beta=1.5"], "optimizer.row_beta=1.5 is not at least 0 and below 1"),
        (["optimizer.lr=100"], "lr=100 is not at least 0 and at most 10: a step changes .*; 0.005 to 0.3 is usual"),
        (["optimizer=adamw", "optimizer.lr=11", "optimizer.weight_decay=0"], "at most 10: .*; 1e-5 to 0.01 is usual"),
        (["optimizer=sgd", "optimizer.lr=1e5"], "at most 10,000; 0.001 to 0.5 is usual"),
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


@pytest.mark.parametrize(
    ("words", "usual"),
    [
        (
            ["optimizer=adamw", "optimizer.lr=5"],
            "optimizer.lr=5 is above what optimizer=adamw usually bears, 1e-5 to 0.01",
        ),
        (["optimizer.lr=0.4"], "optimizer=muon usually bears, 0.005 to 0.3"),
        (["optimizer.lr=0.3"], None),
        *(([f"optimizer={path.stem}"], None) for path in (PROJECT / "conf/optimizer").glob("*.yaml")),
    ],
)
def test_a_rate_above_the_usual_ones_is_warned_of_and_no_shipped_one_is(words, usual):
    line = rate_line(read_config(compose_config(words)))
    assert line is None if usual is None else usual in str(line)
