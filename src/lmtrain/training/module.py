"""Where model, loss, optimizer and parallelism meet, and nowhere else; Lightning's hooks of a step lead to its page.

That page, from the forward pass to the averaged weights, is `optimizer_step.py`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor
from torch.optim import Optimizer

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.model.flops import seen_token_flops
from lmtrain.accounting.observed.metric_names import TRAIN_LOSS
from lmtrain.errors import EnvironmentProblem
from lmtrain.models.base import LanguageModel
from lmtrain.models.head import Loss
from lmtrain.optim.parameter_groups import require_each_once
from lmtrain.parallel.outer_step import OuterStep
from lmtrain.parallel.rank_reports import on_all_ranks
from lmtrain.training.hyperparameters import Hyperparameters, MomentumCurve, Multiplier
from lmtrain.training.objectives.objective import Objective, of_rank
from lmtrain.training.optimizer_step import OptimizerStep
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.step_metrics import StepMetrics
from lmtrain.training.token_batch import TokenBatch
from lmtrain.training.transforms import ModelTransforms
from lmtrain.training.weight_average import WeightAverage, to_evaluation, to_training

MASK: Final = (1 << 64) - 1
OBJECTIVE: Final = "objective"  # a checkpoint's key
COMPANIONS: Final = frozenset({"spikes", "weight_average"})  # modules beside the model, saved with it
STATEFUL: Final = COMPANIONS | {"optimizer", OBJECTIVE}


class CausalLMModule(pl.LightningModule):
    """Train a language model to predict the next token; usable with any Lightning Trainer.

    `trainer.callback_metrics` has each step's `train/loss` and `train/lr`, still on the device, for callbacks such as
    Lightning's `ModelCheckpoint(monitor="train/loss")`; only callbacks from elsewhere make it filled.
    """

    runs_in_step_loop: Final = True  # by make_trainer, in place of Lightning's loop

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
        outer: OuterStep | None = None,
        objective: Objective | None = None,
        before_training: Callable[["CausalLMModule"], object] | None = None,
        scales_loss: bool = False,
        transforms: ModelTransforms | None = None,
    ) -> None:
        """Hold the parts; `schedule(step, total_steps)` multiplies each group's learning rate.

        A budget of time moves `total_steps` while training goes on. `spikes` decides on the steps to take back. With an
        `outer` step each rank is a worker with its own gradients.
        `scales_loss`: the precision skips steps whose gradient is not finite. `objective` takes the place of the loss
        of next tokens; `before_training` is called once, with the weights that the run starts from.
        """
        super().__init__()
        self.language_model = model
        self.loss = loss
        self.step_metrics = StepMetrics(
            num_copies=batch.num_copies,
            num_workers=1 if outer is None else batch.num_data_ranks,
            takes_back=spikes is None or spikes.takes_back,
        )
        self.spikes = spikes
        self.weight_average = weight_average
        self.outer = outer
        self.objective = objective
        self._before_training = before_training
        self.make_optimizer = optimizer
        self._scheduled = partial(
            Hyperparameters, lr=schedule, momentum=momentum_schedule, weight_decay=weight_decay_schedule
        )
        self._make_step = partial(
            OptimizerStep,
            loss=loss,
            metrics=self.step_metrics,
            batch=batch,
            gradient_clip_norm=gradient_clip_norm,
            spikes=spikes,
            weight_average=weight_average,
            outer=outer,
            objective=objective,
            scales_loss=scales_loss,
            seen_flops=seen_token_flops(model.shape()),  # before ranks share it out
        )
        self._micro_steps, self._data_rank = batch.accumulation_micro_steps, batch.data_rank
        self.total_steps = total_steps
        self._seed = seed
        self._transforms = transforms or ModelTransforms()
        self._is_configured = False
        self.begins_anew: frozenset[str] = frozenset()  # parts whose state a resume leaves behind

    def configure_model(self) -> None:
        """Materialise, initialise and transform the model, and start its companions: once."""
        if self._is_configured:
            return
        self._is_configured = True
        model = materialize(self.language_model, device=self.trainer.strategy.root_device, seed=self._seed)
        self.language_model = self._transforms.apply(model, self.device_mesh)
        if self.spikes is not None:
            self.spikes.to(self.trainer.strategy.root_device)
        if self.weight_average is not None:
            self.weight_average.start(self.language_model)
        if self.outer is not None:
            self.outer.start(self.language_model)
        if self._before_training is not None:
            self._before_training(self)

    @property
    def weight_holders(self) -> list[object]:
        """Return all holders of other weights for evaluation than for training."""
        return [*self.trainer.optimizers, self.outer]

    def configure_optimizers(self) -> Optimizer:
        """Build the optimizer on the final (perhaps sharded) parameters, with the schedules of its values."""
        optimizer = self.make_optimizer(self.language_model)
        require_each_once(self.language_model, optimizer)
        self.step = self._make_step(
            model=self.language_model,
            optimizer=optimizer,
            hyperparameters=self._scheduled(optimizer),
        )
        return optimizer

    def on_train_start(self) -> None:
        """Switch to the trained weights, where there are others for evaluation."""
        to_training(self.weight_holders)
        callbacks: list[pl.Callback] = self.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]  # set when built
        self._is_watched = any(
            not isinstance(one, LambdaCallback) and not type(one).__module__.startswith("lmtrain.") for one in callbacks
        )
        self._place = self.device, self._data_rank(self.trainer.global_rank)

    def on_train_end(self) -> None:
        """Leave the weights meant for use."""
        to_evaluation(self.weight_holders)

    def on_train_batch_start(self, batch: Tensor | TokenBatch, batch_idx: int) -> None:
        """Reseed from (seed, step, micro step, rank), so that dropout and the like resume with nothing saved."""
        del batch
        device, rank = self._place
        step, micro_step = self.trainer.global_step, batch_idx % self._micro_steps
        seed = keyed_seed(self._seed, step, micro_step, rank)
        seed_device(device, seed)
        if self.objective is not None:
            self.objective.begin(step=step, micro_step=micro_step, seed=seed)

    def training_step(self, batch: Tensor | TokenBatch, batch_idx: int) -> Tensor:
        """Return this micro-batch's share of the step's loss."""
        del batch_idx
        return self.step.forward(batch)

    def backward(self, loss: Tensor, *arguments: Any, **settings: Any) -> None:
        """Add this micro-batch's gradients."""
        self.step.backward(loss, *arguments, **settings)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Do nothing: gradients went, or were zeroed, as soon as the step before had used them."""

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Make gradients and optimizer ready: Lightning's last hook before the weights move."""
        del optimizer, gradient_clip_val, gradient_clip_algorithm
        self.step.prepare(self.trainer.global_step, self.total_steps)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Let the strategy step, and settle afterwards."""
        del epoch, batch_idx, optimizer  # Lightning's wrapper of the only one does nothing more
        assert optimizer_closure is not None
        self.trainer.strategy.optimizer_step(self.trainer.optimizers[0], optimizer_closure)
        step = self.trainer.global_step  # Lightning counts the step as done after this hook
        self.step.settle(step, is_last=step + 1 >= self.total_steps)
        last = self.step_metrics.last_step
        if self._is_watched and last is not None:
            lr = torch.tensor(last.lr)
            self.trainer.callback_metrics.update({TRAIN_LOSS: last.sums.loss.float(), "train/lr": lr})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the objective's state, of all ranks."""
        states = [] if self.objective is None else on_all_ranks(self.objective.state())
        if any(states):
            checkpoint[OBJECTIVE] = states

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restate Lightning's micro-batch counters for this run's accumulation, perhaps other than the saved one.

        Checkpoints lie on step boundaries, so micro-batches done = steps x micro-steps. An objective's own state is of
        as many ranks.

        Raises:
            ConfigurationError: It is of another number of ranks, or of other micro-batches.
            EnvironmentProblem: Its content is of other types or shapes than this module's own.
        """
        require_same_types(checkpoint, self)
        if self.objective is not None and OBJECTIVE in checkpoint and OBJECTIVE not in self.begins_anew:
            self.objective.load(of_rank(checkpoint[OBJECTIVE], self.trainer.global_rank, self.trainer.world_size))
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        if "optimizer" in self.begins_anew:
            checkpoint["optimizer_states"] = []
        done = int(checkpoint["global_step"]) * self._micro_steps
        for span in ("total", "current"):
            progress[span].update(dict.fromkeys(progress[span], done))

    def load_state_dict(  # as torch has it
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,  # noqa: FBT001, FBT002
        assign: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Take a checkpoint's state; a companion of the model that starts again keeps its own."""
        if starts := tuple(f"{name}." for name in COMPANIONS & self.begins_anew):
            others = {name: value for name, value in state_dict.items() if not name.startswith(starts)}
            own = {name: value for name, value in self.state_dict().items() if name.startswith(starts)}
            state_dict = {**others, **own}
        outcome = super().load_state_dict(state_dict, strict=strict, assign=assign)
        if "weight_average" in self.begins_anew and self.weight_average is not None:
            self.weight_average.start_again(self.language_model)
        return outcome


def require_same_types(checkpoint: dict[str, Any], module: pl.LightningModule) -> None:
    """Refuse a checkpoint of right bytes and wrong content: other types or shapes than this run would save."""
    trainer = module.trainer
    weights = dict(module.state_dict())
    found = _difference(checkpoint.get("state_dict", {}), weights, "state_dict")
    states = checkpoint.get("optimizer_states")
    if found is None and states is not None and len(states) != 1:
        found = f"optimizer_states has {len(states)} entries, and this run has one optimizer"
    fit_loop: Any = trainer.fit_loop
    found = found or _difference(checkpoint.get("loops", {}).get("fit_loop"), fit_loop.state_dict(), "loops.fit_loop")
    own: list[pl.Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]  # set when built
    for callback in [] if found else own:
        saved = checkpoint.get("callbacks", {}).get(callback.state_key)
        if saved is not None and found is None:
            found = _difference(saved, callback.state_dict(), f"callbacks.{type(callback).__name__}")
    if found:
        raise EnvironmentProblem(f"The checkpoint is not one of this run: {found}; use another checkpoint.")


def _difference(found: Any, like: Any, place: str) -> str | None:
    """Return the first place where a saved value has another type than today's; missing and new names are fine."""
    if isinstance(like, Mapping):
        if not isinstance(found, Mapping):
            return f"{place} is not a mapping"
        pairs = ((name, found[name], value) for name, value in like.items() if name in found)
        problems = (_difference(one, value, f"{place}.{name}") for name, one, value in pairs)
        return next((problem for problem in problems if problem), None)
    if isinstance(like, Tensor):
        if not isinstance(found, Tensor) or found.is_floating_point() != like.is_floating_point():
            return f"{place} is not a tensor of {like.dtype}"
        if "language_model" in place and found.shape != like.shape:
            return f"{place} has shape {list(found.shape)} instead of {list(like.shape)}"
        return None
    if isinstance(like, int | float):  # bool included
        return None if found is None or isinstance(found, int | float) else f"{place} is not a number"
    if isinstance(like, str) and not isinstance(found, str):
        return f"{place} is not a text"
    return None


def materialize(model: LanguageModel, *, device: torch.device, seed: int) -> LanguageModel:
    """Give a model built on the meta device real memory and its seeded initial weights; leave a real model as it is."""
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device)
        model.initialize_weights(torch.Generator(device=device).manual_seed(seed))
    return model


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the generators of the CPU and of the computing device.

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
