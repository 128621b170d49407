"""Our own bare loop: the same model, data order and optimizer as the full Trainer's, and nothing around them."""

from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.train_step.task import CLIP_NORM, LOG_EVERY_STEPS, Architecture, Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.train_step.ours import make_job, make_run
from lmtrain.models.base import LanguageModel
from lmtrain.training.module import CausalLMModule, materialize
from lmtrain.training.training_batches import RankRows, TrainingBatches

GIVEN = "our model, loader and fused AdamW in a hand-written loop; loss read every 10 steps"


def batches(run: Any) -> TrainingBatches:
    """Read what the Trainer would read."""
    datamodule = run.datamodule
    rows, order = datamodule.rows_in_order()
    return TrainingBatches(rows, RankRows(order, batch=run.context.plan.batch, rank=0, start_step=0))


class BareSteps:
    """Optimizer steps by hand on a model of a module's: forward, backward, clip, optimizer, zero, read the loss."""

    def __init__(self, module: CausalLMModule, model: LanguageModel, task: Task) -> None:
        self._model = module._transforms.compile(model)  # noqa: SLF001
        self._optimizer: Any = module.make_optimizer(self._model)
        self._parameters = list(self._model.parameters())
        self._loss, self._task, self._step = module.loss, task, 0

    def __call__(self, batch: Tensor) -> None:
        """Train on the rows of one step, [B, T + 1]."""
        task = self._task
        tokens = batch.to(task.device, non_blocking=True).long()
        with torch.autocast(task.device, torch.bfloat16, enabled=task.precision == "bf16_mixed"):
            total = self._model(tokens[:, :-1], tokens[:, 1:], self._loss)
        (total.objective / task.tokens_per_step).backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, CLIP_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._step % LOG_EVERY_STEPS == 0:
            total.nats.item()
        self._step += 1


def run(task: Task, turns: Turns, *, architecture: Architecture) -> None:
    """Train."""
    built = make_run(make_job(task, ["logger=none"], name="bare", architecture=architecture))
    module: CausalLMModule = built.module
    model = materialize(module.language_model, device=torch.device(task.device), seed=0)
    turns.say(num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    train = BareSteps(module, model, task)
    for batch in batches(built):
        train(batch)
        turns.step()
