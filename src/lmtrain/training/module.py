"""Where model, loss, optimizer and parallelism meet, and nowhere else: one optimizer step of a language model.

The loss is a sum over tokens; gradients are divided once a step by the valid tokens of the whole accumulation window
over all ranks, so that one rank with four micro-batches, four with one, and two with two give the same update.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lmtrain.accounting.batches import BatchPlan
from lmtrain.losses.base import LossTotal, OutputHead
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.gradients import global_norm, scale_gradients
from lmtrain.training.step_metrics import StepMetrics
from lmtrain.training.token_batch import TokenBatch, training_tokens

ModelTransform = Callable[[LanguageModel], LanguageModel]
Loss = Callable[[OutputHead, Tensor, Tensor], LossTotal]


def unchanged(model: LanguageModel) -> LanguageModel:
    """Return the model as it is: the "off" of every transform."""
    return model


def unsharded(model: LanguageModel, mesh: DeviceMesh | None) -> LanguageModel:
    """Return the model whole, whatever the mesh."""
    del mesh
    return model


@dataclass(frozen=True, kw_only=True)
class ModelTransforms:
    """What is done to a plain model before training, applied in the order written in `configure_model`."""

    start_from: ModelTransform = unchanged  # weights of an earlier training in place of the random ones
    recompute: ModelTransform = unchanged
    compile: ModelTransform = unchanged
    parallelize: Callable[[LanguageModel, DeviceMesh | None], LanguageModel] = unsharded


class CausalLMModule(pl.LightningModule):
    """Train a language model to predict the next token; usable with any Lightning Trainer."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        loss: Loss,
        optimizer: Callable[[LanguageModel], Optimizer],
        schedule: Callable[[int, int], float],
        batch: BatchPlan,
        total_steps: int,
        seed: int,
        gradient_clip_norm: float | None = None,
        transforms: ModelTransforms | None = None,
    ) -> None:
        """Hold the parts; `schedule(step, total_steps)` multiplies each group's learning rate.

        A budget of time moves `total_steps` while training goes on.
        """
        super().__init__()
        self.language_model = model
        self.loss = loss
        self.step_metrics = StepMetrics()
        self._optimizer = optimizer
        self._schedule = schedule
        self._batch = batch
        self.total_steps = total_steps
        self._seed = seed
        self._gradient_clip_norm = gradient_clip_norm
        self._transforms = transforms or ModelTransforms()
        self._is_configured = False

    def configure_model(self) -> None:
        """Materialise, initialise, start from given weights, recompute, compile, parallelize: once, in this order."""
        if self._is_configured:
            return
        self._is_configured = True
        model = materialize(self.language_model, device=self.trainer.strategy.root_device, seed=self._seed)
        model = self._transforms.start_from(model)
        model = self._transforms.recompute(model)
        model = self._transforms.compile(model)
        self.language_model = self._transforms.parallelize(model, self.device_mesh)

    def configure_optimizers(self) -> Any:
        """Build the optimizer on the final (perhaps sharded) parameters, and its per-step schedule."""
        optimizer = self._optimizer(self.language_model)
        scheduler = LambdaLR(optimizer, lambda step: self._schedule(step, self.total_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_batch_start(self, batch: Tensor | TokenBatch, batch_idx: int) -> None:
        """Reseed from (seed, step, micro step, rank), so that dropout and the like resume with nothing saved."""
        del batch
        micro_step = batch_idx % self._batch.accumulation_micro_steps
        torch.manual_seed(keyed_seed(self._seed, self.global_step, micro_step, self.global_rank))

    def training_step(self, batch: Tensor | TokenBatch, batch_idx: int) -> Tensor:
        """Return this micro-batch's share of the step's loss from ids [B, T + 1], or what a TokenBatch says."""
        del batch_idx
        inputs, targets, documents = training_tokens(batch)
        total: LossTotal = self.language_model(inputs, targets, self.loss, documents)
        self.step_metrics.add_micro_step(total)
        # Lightning divides by the micro-steps and data parallelism averages over ranks: both are undone here.
        return total.objective * (
            self._batch.accumulation_micro_steps * self._batch.num_ranks / self._batch.tokens_per_step
        )

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Divide gradients by the valid tokens of the whole step, clip their global norm, and record the step."""
        del gradient_clip_val, gradient_clip_algorithm
        parameters = list(self.language_model.parameters())
        totals = self.step_metrics.reduce_totals()
        factor = self._batch.tokens_per_step / totals[1].clamp(min=1)  # no token of a whole step may carry loss
        norm = global_norm(parameters) * factor
        if self._gradient_clip_norm is not None:
            factor = factor * (self._gradient_clip_norm / (norm + 1e-6)).clamp(max=1.0)
        scale_gradients(parameters, factor)
        lr = float(optimizer.param_groups[0]["lr"])
        self.step_metrics.finish_step(self.global_step + 1, totals=totals, gradient_norm=norm, lr=lr)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restate Lightning's micro-batch counters for this run's accumulation, which may differ from the saved one.

        Checkpoints lie on step boundaries, so micro-batches done = steps x micro-steps.
        """
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        done = int(checkpoint["global_step"]) * self._batch.accumulation_micro_steps
        for span in ("total", "current"):
            progress[span].update(dict.fromkeys(progress[span], done))


def materialize(model: LanguageModel, *, device: torch.device, seed: int) -> LanguageModel:
    """Give a model built on the meta device real memory and its seeded initial weights; leave a real model as it is."""
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device)
        model.initialize_weights(torch.Generator(device=device).manual_seed(seed))
    return model


def keyed_seed(*parts: int) -> int:
    """Map integers to one well-mixed 63-bit seed; the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
