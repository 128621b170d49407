"""The page of a step is true: what it lists happens in this order, in our loop and in Lightning's own."""

import re
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from lmtrain.accounting.batches import Batch, plan_batches
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.precision.policy import fp16_mixed
from lmtrain.training import optimizer_step
from lmtrain.training.hyperparameters import Hyperparameters
from lmtrain.training.module import materialize
from lmtrain.training.optimizer_step import OptimizerStep
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.step_metrics import StepMetrics
from lmtrain.training.weight_average import WeightAverage
from tests.training import short_run

LISTED = re.findall(r"^    ([\w.]+)  ", optimizer_step.__doc__ or "", re.MULTILINE)
KEPT = ("spikes", "weight_average")


class Order(pl.Callback):
    """Notes hooks by their names, and calls of what it was put around."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append("on_train_batch_start")

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.seen.append("on_before_optimizer_step")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append("on_train_batch_end")

    def watch(self, monkeypatch: pytest.MonkeyPatch, owner: Any, attribute: str, name: str) -> None:
        original = getattr(owner, attribute)

        def noted(*arguments: Any, **settings: Any) -> Any:
            self.seen.append(name)
            return original(*arguments, **settings)

        monkeypatch.setattr(owner, attribute, noted)


def lightnings_loop(make_trainer: Any, **settings: Any) -> pl.Trainer:
    trainer = make_trainer(**settings)
    trainer.fit_loop.epoch_loop = _TrainingEpochLoop(trainer)
    return trainer


@pytest.mark.parametrize("own", [True, False], ids=["our loop", "Lightning's"])
def test_a_step_goes_as_its_page_says(data_folder, tmp_path, monkeypatch, own):
    order, make_trainer = Order(), short_run.make_trainer
    monkeypatch.setattr(
        short_run,
        "make_trainer",
        lambda **settings: (make_trainer if own else partial(lightnings_loop, make_trainer))(
            **settings | {"precision": PrecisionPlugin(fp16_mixed(), device_type="cpu")}
        ),
    )
    for name in ("forward", "backward", "prepare", "settle"):
        order.watch(monkeypatch, OptimizerStep, name, name)
    order.watch(monkeypatch, torch.amp.GradScaler, "unscale_", "unscale")
    order.watch(monkeypatch, torch.optim.SGD, "step", "optimizer.step")
    short_run.train(data_folder, tmp_path, steps=2, micro_batch_sequences=2, extra=order, scales_loss=True)
    start, forward, backward, *update, end = LISTED
    assert update[-1] == "settle", "the page was read"
    assert order.seen == 2 * [start, forward, backward, end, start, forward, backward, *update, end]


def extras() -> dict[str, Any]:
    spikes, average = SpikeFilter(num_sigmas=6.0, window_steps=8), WeightAverage(decay=0.9)
    return {"gradient_clip_norm": 0.1, "spikes": spikes, "weight_average": average}


def test_a_trainers_steps_are_these_parts_called_in_turn(data_folder, tmp_path):
    """Weights, their average and the records to the last bit, beside steps without a Trainer."""
    trained, batches = short_run.train(data_folder, tmp_path, steps=2, micro_batch_sequences=2, **extras())
    model, parts = materialize(short_run.meta_model(), device=torch.device("cpu"), seed=7), extras()
    parts["weight_average"].start(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=short_run.LR)
    plan = plan_batches(Batch(context_tokens=16, tokens_per_step=64, micro_batch_sequences=2))
    step = OptimizerStep(
        model=model,
        loss=CrossEntropy(),
        optimizer=optimizer,
        hyperparameters=Hyperparameters(optimizer, lr=lambda step, total_steps: 1 - step / total_steps),
        metrics=StepMetrics(),
        batch=plan,
        **parts,
    )
    for number in range(2):
        for batch in batches[2 * number : 2 * number + 2]:
            step.backward(step.forward(batch) / plan.accumulation_micro_steps)
        step.prepare(number, 10)
        optimizer.step()
        step.settle(number)
    assert step.metrics.drain() == trained.step_metrics.drain()
    by_hand = torch.nn.ModuleDict({"language_model": model, **{name: parts[name] for name in KEPT}}).state_dict()
    assert by_hand.keys() == trained.state_dict().keys()
    assert all(torch.equal(by_hand[name], value) for name, value in trained.state_dict().items())
