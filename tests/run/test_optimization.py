"""A run's optimizer and its schedules."""

from pathlib import Path

import pytest
import torch

from lmtrain.accounting.budgets import Horizon
from lmtrain.cli.main import serve
from lmtrain.errors import ConfigurationError
from lmtrain.run.builders.optimization import rehearsed_optimizer, schedules_of
from lmtrain.run.run_config import read_config
from lmtrain.run.schema.node import Node
from lmtrain.run.validators.optimizer import require_ramps_fit
from tests import tiny
from tests.configs import config_of, config_with
from tests.optim.models import tiny_model
from tests.optim.options import OPTIONS, OWN, build


def require(*words: str) -> None:
    config = read_config(config_of(*tiny.MODEL, *words).values).checked()
    with torch.device("meta"):
        model = config.model.build()
    rehearsed_optimizer(config, model)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("optimizer=adafactor strategy=fsdp", ["strategy: must", "got fsdp", "optimizer=adagrad, adamw"]),
        ("optimizer=schedule_free schedule=trapezoid", ["schedule: must", "got trapezoid", "schedule=constant"]),
        ("optimizer=adamw optimizer.beta1=2", ["optimizer.beta1 must be at least 0 and below 1, got 2", "mean 0.95?"]),
        ("optimizer.weight_decay=-1", ["optimizer.weight_decay must be at least 0, got -1. Did you mean 0.1?"]),
        ("optimizer.lr=nan", ["optimizer.lr must be at least 0 and at most 10, got nan", "0.005 to 0.3, as a step"]),
        ("optimizer=sgd optimizer.lr_multipliers={head:-2}", ["lr_multipliers.head must be at least 0", "got -2"]),
        ("optimizer=schedule_free optimizer.beta1=0", ["optimizer.beta1=0 leaves schedule_free without its average"]),
        ("optimizer=adamw optimizer.eps=0", ["optimizer.eps must be at least 1e-38, got 0", "1e-8"]),
        ("optimizer=adamw optimizer.weight_decay=1000", ["optimizer.weight_decay: must be below 1/lr=333.3"]),
        ("optimizer=adafactor optimizer.clip_threshold=0", ["optimizer.clip_threshold must be at least 1, got 0"]),
        ("momentum_schedule=rise_and_fall optimizer=rmsprop", ["momentum_schedule: must be none", "got rise_and_fall"]),
        ("weight_decay_schedule=linear", ["weight_decay_schedule: must be none", "got linear"]),
        ("optimizer=sgd +optimizer.momentum=0.9", ["optimizer.momentum=0.9 is not a setting of this node"]),
        ("optimizer=adamw optimizer.lr_multipliers={heads:2}", ["lr_multipliers.heads", "Did you mean 'head'?"]),
        ("~optimizer.lr", ["optimizer=muon: missing a required argument: 'lr'; give it as optimizer.NAME=VALUE"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_fix(words: str, parts: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        require(*words.split())
    for part in parts:
        assert part in str(refused.value)


@pytest.mark.parametrize("option", OWN)
def test_a_new_optimizer_has_no_empty_state(option: str) -> None:
    """torch prepares the state that a sharded checkpoint is loaded into only where there is not even an entry."""
    assert all(build(option, tiny_model()).state.values())


@pytest.mark.parametrize("option", sorted(set(OPTIONS) - {"adamw_8bit", "adafactor"}))  # torch's own steps
def test_a_step_asks_the_device_for_nothing(option: str) -> None:
    """Weights without memory raise where a value is asked for; counts that an optimizer keeps on the host do not.

    Compiled updates run as they are written: as one graph without a break (test_muon_update.py) they cannot ask either.
    """
    model = tiny_model().to("meta")
    optimizer = build(option, model)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with torch.compiler.set_stance("force_eager"):
            optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize("option", OWN)
def test_every_option_trains_from_the_command_line_and_resumes_exactly(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        *tiny.TINY,
        "debug=tiny",
        f"optimizer={option}",
        "schedule=constant",
        "budget.steps=12",
        "callbacks.checkpoint.every_steps=8",
        "callbacks.validation.num_passes=null",
        "callbacks.validation.max_tokens=200",
    ]
    for more in (["run.name=whole"], ["run.name=parted", "resume=runs/whole/checkpoints/step_00000008"]):
        with torch.compiler.set_stance("force_eager"):  # adamw_8bit compiles its step: test_adamw_8bit.py
            assert serve("train", [*words, *more], program="python train.py") == 0, capfd.readouterr().err
    whole, parted = (tiny.losses(tmp_path / "runs" / name) for name in ("whole", "parted"))
    assert (len(whole), max(parted)) == (12, 12)
    forked = {step: whole[step] for step in parted if step > 8}
    parted = {step: parted[step] for step in forked}
    assert len(forked) == 4
    # Schedule-free weights move to their average and back where a run saves, which rounds in fp32.
    assert forked == (pytest.approx(parted, abs=1e-6) if option == "schedule_free" else parted)
    values = list(whole.values())
    assert sum(values[-3:]) < sum(values[:3])
    assert f"optimizer={option}\n  matrices: " in capfd.readouterr().out


def horizon(steps, *, seconds=None):
    return Horizon(steps=steps, tokens=steps * 2048, flops=1, limited_by="steps", seconds=seconds, most_steps=steps)


def composed(*overrides, steps=1000, fork_step=None):
    config = config_of(*overrides)
    return schedules_of(config, horizon=horizon(steps), tokens_per_step=2048, fork_step=fork_step)


def test_tokens_are_counted_by_the_run_s_own_steps():
    schedule = composed("schedule=linear", "schedule.warmup_fraction=null", "schedule.warmup_tokens=204800")["schedule"]
    assert [schedule(step, 1000) for step in (0, 50, 100, 1000)] == [0, 0.5, 1.0, 0.0]


def test_a_cool_down_begins_where_the_run_was_forked_unless_told_otherwise():
    forked = composed("schedule=cooldown", steps=1200, fork_step=1000)["schedule"]
    told = composed("schedule=cooldown", "schedule.start_step=600", steps=1200, fork_step=1000)["schedule"]
    assert [forked(step, 1200) for step in (1000, 1100, 1200)] == [1.0, 0.5, 0.0]
    assert [told(step, 1200) for step in (600, 900, 1200)] == [1.0, 0.5, 0.0]
    with pytest.raises(ConfigurationError, match=r"schedule\.start_step .*resume=runs"):
        composed("schedule=cooldown", steps=1200)
    with pytest.raises(ConfigurationError, match=r"schedule\.start_step .*step 900, got 1000"):
        composed("schedule=cooldown", steps=900, fork_step=1000)
    with pytest.raises(ConfigurationError, match=r"schedule\.start_step must be at least 0 .*got -1"):
        composed("schedule=cooldown", "schedule.start_step=-1")


def refuse(node, *, horizon, name="schedule"):
    bare = {key: Node(key, {}) for key in ("schedule", "momentum_schedule")}
    config = config_with(**{**bare, name: Node(name, node)})
    require_ramps_fit(config, horizon=horizon, tokens_per_step=1000)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"warmup_steps": 101},
            r"schedule\.warmup_steps=101 take 101 .* than the run of 100.*=100, or budget\.steps=101\?",
        ),
        (
            {"warmup_steps": 50, "warmdown_fraction": 0.6},
            r"warmup_steps=50 and schedule\.warmdown_fraction=0\.6 take 110",
        ),
        (
            {"warmup_tokens": 90_000, "warmdown_steps": 20},
            r"Did you mean schedule\.warmup_steps=80, or budget\.steps=110\?",
        ),
        ({"warmdown_steps": 200}, r"warmdown_steps=200 take 200 steps.*shorter ones, or a larger budget"),
    ],
)
def test_a_schedule_longer_than_its_budget_is_refused_with_what_would_fit(node, message):
    with pytest.raises(ConfigurationError, match=message):
        refuse(node, horizon=horizon(100))
