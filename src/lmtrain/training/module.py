"""Where model, loss, optimizer and parallelism meet, and nowhere else: one optimizer step of a language model.

The loss is a sum over tokens; gradients are divided once a step by the valid tokens of the whole accumulation window
over all ranks, so that one rank with four micro-batches, four with one, and two with two give the same update.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from lmtrain.accounting.batches import BatchPlan
from lmtrain.models.base import LanguageModel
from lmtrain.models.loss import Loss, LossTotal
from lmtrain.optim.fused import can_fold, fold_into_step
from lmtrain.optim.parameter_groups import require_each_once
from lmtrain.parallel.gradients import global_norm, scale_gradients
from lmtrain.training.batches.token_batch import TokenBatch, training_tokens
from lmtrain.training.evaluation_weights import to_evaluation, to_training
from lmtrain.training.hyperparameters import Hyperparameters, MomentumCurve, Multiplier
from lmtrain.training.micro_step_graph import MakeGraph, RecordedMicroStep
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.step_metrics import StepMetrics, StepSums
from lmtrain.training.transforms import ModelTransforms
from lmtrain.training.undo import Undo
from lmtrain.training.weight_average import WeightAverage

MASK: Final = (1 << 64) - 1


class CausalLMModule(pl.LightningModule):
    """Train a language model to predict the next token; usable with any Lightning Trainer."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        loss: Loss,
        optimizer: Callable[[LanguageModel], Optimizer],
        schedule: Multiplier,
        momentum_schedule: MomentumCurve | None = None,
        weight_decay_schedule: Multiplier | None = None,
        batch: BatchPlan,
        total_steps: int,
        seed: int,
        gradient_clip_norm: float | None = None,
        spikes: SpikeFilter | None = None,
        weight_average: WeightAverage | None = None,
        scales_loss: bool = False,
        make_graph: MakeGraph | None = None,
        transforms: ModelTransforms | None = None,
    ) -> None:
        """Hold the parts; `schedule(step, total_steps)` multiplies each group's learning rate.

        A budget of time moves `total_steps` while training goes on. `spikes` says which steps are taken back.
        `scales_loss`: the precision skips steps whose gradient is not finite. `make_graph` makes what records
        micro-steps, which are then launched as one; gradients stay in memory for it.
        """
        super().__init__()
        self.language_model = model
        self.loss = loss
        self.step_metrics = StepMetrics()
        self._optimizer = optimizer
        self._scheduled = partial(
            Hyperparameters, lr=schedule, momentum=momentum_schedule, weight_decay=weight_decay_schedule
        )
        self.spikes = spikes
        self.weight_average = weight_average
        self._scales_loss = scales_loss
        self._make_graph = make_graph
        self._recorded: RecordedMicroStep | None = None
        self._micro_steps = batch.accumulation_micro_steps
        self._tokens_per_step = batch.tokens_per_step
        # Lightning divides by the micro-steps and data parallelism averages over ranks: both are undone here.
        self._loss_weight = batch.accumulation_micro_steps * batch.num_ranks / batch.tokens_per_step
        self.total_steps = total_steps
        self._seed = seed
        self._gradient_clip_norm = gradient_clip_norm
        self._transforms = transforms or ModelTransforms()
        self._is_configured = False
        self._undo: tuple[Undo, Tensor] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; Lightning notes the hook it is in some forty times a step, which is no parameter."""
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def configure_model(self) -> None:
        """Materialise, initialise and transform the model, and start what is kept beside it: once."""
        if self._is_configured:
            return
        self._is_configured = True
        model = materialize(self.language_model, device=self.trainer.strategy.root_device, seed=self._seed)
        self.language_model = self._transforms.apply(model, self.device_mesh)
        if self.spikes is not None:
            self.spikes.to(self.trainer.strategy.root_device)
        if self.weight_average is not None:
            self.weight_average.start(self.language_model)

    def configure_optimizers(self) -> Optimizer:
        """Build the optimizer on the final (perhaps sharded) parameters, with what its schedules say of each step."""
        optimizer = self._optimizer(self.language_model)
        require_each_once(self.language_model, optimizer)
        self._hyperparameters = self._scheduled(optimizer)
        self._folds = can_fold(optimizer)
        self._all_parameters = list(self.language_model.parameters())  # walking the modules takes a while
        if self._make_graph is not None:
            graph = self._make_graph(self.device)
            self._recorded = RecordedMicroStep(self._forward_and_backward, self._all_parameters, graph=graph)
        return optimizer

    def on_train_start(self) -> None:
        """Train the weights that are trained, where an optimizer keeps others for evaluation."""
        to_training(self.trainer.optimizers)
        self._place = self.device, self.trainer.global_rank

    def on_train_end(self) -> None:
        """Leave the weights that are meant for use."""
        to_evaluation(self.trainer.optimizers)

    def on_train_batch_start(self, batch: Tensor | TokenBatch, batch_idx: int) -> None:
        """Reseed from (seed, step, micro step, rank), so that dropout and the like resume with nothing saved."""
        del batch
        device, rank = self._place
        seed_device(device, keyed_seed(self._seed, self.trainer.global_step, batch_idx % self._micro_steps, rank))

    def training_step(self, batch: Tensor | TokenBatch, batch_idx: int) -> Tensor:
        """Return this micro-batch's share of the step's loss from ids [B, T + 1], or what a TokenBatch says."""
        del batch_idx
        if self._recorded is None:
            total, loss = self.share_of(batch)
        else:
            total, loss = self._recorded(batch)
            total = LossTotal(*(sums.clone() for sums in total))  # the next micro-step fills the same memory
        self.step_metrics.add_micro_step(total)
        return loss

    def share_of(self, batch: Tensor | TokenBatch) -> tuple[LossTotal, Tensor]:
        """Return a micro-batch's sums, and what is differentiated."""
        inputs, targets, documents = training_tokens(batch)
        total: LossTotal = self.language_model(inputs, targets, self.loss, documents)
        return total, total.objective * self._loss_weight

    def backward(self, loss: Tensor, *arguments: Any, **settings: Any) -> None:
        """Add this micro-batch's gradients, unless a recorded micro-step has done so already."""
        if self._recorded is None:
            loss.backward(*arguments, **settings)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Do nothing: gradients went, or were zeroed, as soon as the step before had used them."""

    def _forward_and_backward(self, batch: TokenBatch) -> tuple[LossTotal, Tensor]:
        total, loss = self.share_of(batch)
        with torch.autocast(self.device.type, enabled=False):  # as outside of a graph: the forward pass alone is cast
            (loss / self._micro_steps).backward()
        return LossTotal(*(sums.detach() for sums in total)), loss.detach()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Divide gradients by the valid tokens of the whole step, clip their global norm, and record the step."""
        del gradient_clip_val, gradient_clip_algorithm
        parameters = self._all_parameters
        sums = self.step_metrics.reduce_micro_steps()
        divisor = sums.num_tokens.clamp(min=1) / self._tokens_per_step  # no token of a whole step may carry loss
        undivided = global_norm(parameters)
        norm = undivided / divisor
        if self._gradient_clip_norm is not None:
            divisor = torch.maximum(divisor, undivided / self._gradient_clip_norm)
        if self._folds:
            fold_into_step(optimizer, divisor)
        else:
            scale_gradients(parameters, divisor.reciprocal())
        step = self.trainer.global_step
        lr = self._hyperparameters.set_for(step, self.total_steps)
        skip = self._judge(sums, norm)
        if skip is not None and self.spikes is not None:
            self._undo = Undo(optimizer), skip
        self.step_metrics.finish_step(step + 1, sums=sums, gradient_norm=norm, lr=lr, skip=skip)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Step; take the step back if it was a spike; average the weights.

        Gradients go at once: Lightning frees them after the next forward pass, at whose end memory is fullest.
        """
        del epoch, batch_idx, optimizer  # Lightning's wrapper of the only one, which does nothing more
        assert optimizer_closure is not None
        self.trainer.strategy.optimizer_step(self.trainer.optimizers[0], optimizer_closure)
        if self._undo is not None:
            undo, skip = self._undo
            undo.where(skip)
            self._undo = None
        self._release_gradients()
        if self.weight_average is not None:
            self.weight_average.update(self.language_model, step=self.global_step)

    def _release_gradients(self) -> None:
        if self._recorded is not None:
            self._recorded.zero_gradients()
            return
        for parameter in self._all_parameters:
            parameter.grad = None

    def _judge(self, sums: StepSums, norm: Tensor) -> Tensor | None:
        if self.spikes is not None:
            return self.spikes.judge(torch.stack([sums.loss, norm.double()]))
        return ~norm.isfinite() if self._scales_loss else None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restate Lightning's micro-batch counters for this run's accumulation, which may differ from the saved one.

        Checkpoints lie on step boundaries, so micro-batches done = steps x micro-steps.
        """
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        done = int(checkpoint["global_step"]) * self._micro_steps
        for span in ("total", "current"):
            progress[span].update(dict.fromkeys(progress[span], done))


def materialize(model: LanguageModel, *, device: torch.device, seed: int) -> LanguageModel:
    """Give a model built on the meta device real memory and its seeded initial weights; leave a real model as it is."""
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device)
        model.initialize_weights(torch.Generator(device=device).manual_seed(seed))
    return model


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the generators of the CPU and of the device that computes.

    `torch.manual_seed` also leaves a note with a stack trace for each kind of accelerator that a process does not use:
    a third of a millisecond a step, and memory that grows for ever (torch 2.13).
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def keyed_seed(*parts: int) -> int:
    """Map integers to one well-mixed 63-bit seed, the same on every machine: SplitMix64 over one after the other.

    Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014.
    """
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state >> 1
