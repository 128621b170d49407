"""A hand-written loop around the same model, data, loss, precision and optimizer as the full Trainer's."""

from itertools import count

import torch

from benchmarks.harness.train_step.task import CLIP_NORM, LOG_EVERY_STEPS, Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.hopper.own_run import make_run
from benchmarks.peers.train_step.bare import batches
from lmtrain.optim.fused import can_fold, fold_into_step
from lmtrain.parallel.gradients import global_norm, scale_gradients
from lmtrain.run.execution.build import Run
from lmtrain.training.module import materialize
from lmtrain.training.token_batch import training_tokens
from lmtrain.training.training_batches import TrainingBatches

GIVEN = "our model, transforms, loader and optimizer in a hand-written loop; loss read every 10 steps"


class BareLoop:
    """Forward, backward, clip, step, zero: nothing else."""

    def __init__(self, run: Run, device: torch.device) -> None:
        module = run.module
        model = materialize(module.language_model, device=device, seed=0)
        self.model = module._transforms.apply(model, None)  # noqa: SLF001
        self.optimizer = module.make_optimizer(self.model)
        self._folds = can_fold(self.optimizer)
        self.parameters = list(self.model.parameters())
        self._precision = run.trainer.precision_plugin
        self._precision.connect(self.model, [self.optimizer], [])
        self._loss = module.loss
        self._device = device
        self._tokens_per_step = run.context.plan.batch.tokens_per_step
        self._batches = iter(self._read(run))

    def _read(self, run: Run) -> TrainingBatches:
        return batches(run)

    def step(self) -> torch.Tensor:
        """Train on one micro-batch and return its nats, on the device."""
        batch = next(self._batches)
        inputs, targets, documents = training_tokens(batch.to(self._device, non_blocking=True))
        with self._precision.forward_context():
            total = self.model(inputs, targets, self._loss, documents)
        (total.objective / self._tokens_per_step).backward()
        divisor = ((global_norm(self.parameters) + 1e-6) / CLIP_NORM).clamp(min=1.0)
        if self._folds:
            fold_into_step(self.optimizer, divisor)
        else:
            scale_gradients(self.parameters, divisor.reciprocal())
        self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        return total.nats


def run(task: Task, turns: Turns) -> None:
    """Train."""
    _, built = make_run(task, name="bare", more=("logger=none",))
    loop = BareLoop(built, torch.device(task.device))
    turns.say(num_parameters=sum(parameter.numel() for parameter in loop.parameters))
    for step in count():
        nats = loop.step()
        if step % LOG_EVERY_STEPS == 0:
            nats.item()
        turns.step()
