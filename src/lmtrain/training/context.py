"""What callbacks are given: by a run of lmtrain, or, in anybody's Lightning Trainer, by the Trainer itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol, cast

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.data.shards import Dataset
from lmtrain.errors import ConfigurationError
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tracking.events import EventLog
from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.tracking.stopwatch import unix_seconds
from lmtrain.training.checkpointing.checkpoints import HeldOutScores
from lmtrain.training.intervals import LastStep, StepInterval, is_step_end
from lmtrain.training.step_metrics import StepMetrics, StepSums

IDS: Final = ("input_ids", "tokens", "ids", "x")  # keys of a batch's token ids


class RunParts(Protocol):
    """The four things that a callback needs of whatever it runs in."""

    @property
    def folder(self) -> Path:
        """Return the folder for the callback's files."""
        ...

    @property
    def events(self) -> EventLog:
        """Return the account of this rank's time."""
        ...

    @property
    def last_step(self) -> LastStep:
        """Return the last optimizer step, as far as it is known."""
        ...

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step, on the first rank."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """A run's parts; a constructor with a parameter `context` receives it.

    `log` is None on every rank but the first, the only writer of metrics and console lines. `identity` holds the facts
    shared by a checkpoint and a run resuming from it. `attempt` numbers the run's starts; `earlier_seconds` is the time
    of those before, `earlier_device_seconds` that of all their devices. `scores` are the newest of its validation.
    `resolved` are its choices by their groups: what runs where the config says auto.
    """

    folder: Path
    plan: Plan
    dataset: Dataset
    tokenizer: Tokenizer
    identity: dict[str, str | int | float | None]
    events: EventLog
    log: RunLog | None
    rank: int = 0
    attempt: int = 1
    earlier_seconds: float = 0.0
    earlier_device_seconds: float = 0.0
    scores: HeldOutScores = field(default_factory=HeldOutScores)
    resolved: dict[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def last_step(self) -> LastStep:
        """Return the run's last step; a budget of time moves it while the run goes on."""
        end = self.plan.horizon
        return LastStep(end.steps, seconds=end.seconds, most_steps=end.most_steps, is_known=not end.is_stand_in)

    @property
    def earlier_seconds_of_budget(self) -> float:
        """Return how much of a budget of time the attempts before this one have spent."""
        if self.plan.horizon.time_limit == "usd":  # twice the devices spend twice the dollars
            return self.earlier_device_seconds / self.plan.batch.num_ranks
        return self.earlier_seconds

    def spent_seconds(self) -> float:
        """Return how much of a budget of time the run has spent, in this attempt and all before it."""
        return self.earlier_seconds_of_budget + self.events.stopwatch.elapsed_seconds

    def pauses_to_come(self, step: int, *, step_seconds: float) -> float:
        """Return the seconds of the validations after a step, of a sample and a save, each as long as the newest.

        Compilation does not come again. Before the first of this attempt a save is expected to take as long as planned,
        and a validation as planned at the speed of training, `step_seconds`.
        """
        saves, evaluation = self.plan.checkpoints, self.plan.evaluation
        planned = {"checkpoint": 0.0 if saves is None else saves.write_seconds, "validation": 0.0}
        if evaluation is not None:
            tokens = self.plan.batch.tokens_per_step
            planned["validation"] = evaluation.pass_seconds(step_seconds=step_seconds, tokens_per_step=tokens)
        pauses = planned | self.events.last_pauses
        passes = evaluation.passes_left(step, num_steps=self.last_step.steps) if evaluation else 1
        return passes * pauses["validation"] + pauses.get("text_samples", 0.0) + pauses["checkpoint"]

    def spent_device_seconds(self, num_devices: int) -> float:
        """Return the same for all devices together: `num_devices` of this attempt, those of each before."""
        return self.earlier_device_seconds + self.events.stopwatch.elapsed_seconds * num_devices

    def tokens_at(self, step: int) -> int:
        """Return how many tokens the run has trained on after a number of steps."""
        return step * self.plan.batch.tokens_per_step

    def point(self, step: int, metrics: Mapping[str, float], *, at: float | None = None) -> Point:
        """Return the curves' point of this step, with the run's tokens at it; `at` in unix seconds, None for now."""
        return Point(unix_seconds() if at is None else at, step, self.tokens_at(step), dict(metrics))

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point of this step to the run's curves; nothing on any rank but the first."""
        if self.log is not None:
            self.log.extend([self.point(step, metrics)])

    @property
    def is_main_process(self) -> bool:
        """Return whether this rank writes for all."""
        return self.rank == 0

    @property
    def checkpoints_folder(self) -> Path:
        """Return where this run's checkpoints live."""
        return self.folder / "checkpoints"


class TrainerParts(pl.Callback):
    """The parts of a Trainer without a run of lmtrain, and the losses and norms of anybody's module.

    lmtrain's first callback puts it in front of a Trainer's callbacks. Metrics go to the Trainer's loggers and its
    `callback_metrics`. `steps` holds every optimizer step's loss, a mean over its micro-batches, and its gradient's
    norm; on the device until somebody asks.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self.folder = Path(trainer.default_root_dir) / "lmtrain"
        self.events = EventLog(None, trainer.global_rank)
        self.last_step = LastStep(num_steps(trainer), is_known=num_steps(trainer) < UNLIMITED)
        self.steps = StepMetrics()
        self.num_tokens = self.first_step_tokens = 0  # over all ranks, of this process's steps
        self.tokens_per_step = 0.0  # their mean
        self._loss: Tensor | None = None
        self._norm: Tensor | None = None
        self._step = self._num_steps = 0  # the newest; how many this process took
        self.has_stepped = False  # in the micro-batch that has just ended

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step by the Trainer's loggers, and show them to other callbacks."""
        self._trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        for logger in self._trainer.loggers if self._trainer.is_global_zero else []:
            logger.log_metrics(dict(metrics), step=step)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step = trainer.global_step
        if not self.last_step.is_known and (known := num_steps(trainer)) < UNLIMITED:  # the data's length is known now
            self.last_step.at_most(known)

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        # Lightning divides the loss by the micro-batches, unless the module optimizes by itself.
        scale = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        self._loss = loss.detach() * scale

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        self._norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        tokens = count_tokens(batch)
        self.num_tokens += tokens * trainer.world_size
        if self._loss is not None:
            count = torch.full((), tokens, device=self._loss.device, dtype=torch.float64)
            self.steps.add_micro_step(StepSums(self._loss.double() * count, count))
        self.has_stepped = trainer.global_step > self._step
        if self.has_stepped:
            self.first_step_tokens = self.first_step_tokens or self.num_tokens
            self._num_steps += trainer.global_step - self._step
            self.tokens_per_step = self.num_tokens / self._num_steps
        if self.has_stepped and self._norm is not None and self._loss is not None:
            lr = float(trainer.optimizers[0].param_groups[0]["lr"])
            sums = self.steps.reduce_micro_steps()
            self.steps.finish_step(trainer.global_step, sums=sums, gradient_norm=self._norm, lr=lr)
        self._step, self._loss = trainer.global_step, None


UNLIMITED: Final = 1 << 62


def num_steps(trainer: pl.Trainer) -> int:
    """Return the number of a Trainer's last optimizer step; UNLIMITED if it has none or does not know it yet.

    How many steps a module takes of a batch that optimizes by itself, only its own code knows.
    """
    limits = [trainer.max_steps] if trainer.max_steps and trainer.max_steps > 0 else []
    batches = trainer.num_training_batches
    is_manual = not trainer.lightning_module.automatic_optimization
    if not is_manual and trainer.max_epochs and trainer.max_epochs > 0 and 0 < batches < float("inf"):
        per_epoch = -(-int(batches) // trainer.accumulate_grad_batches)
        limits.append(per_epoch * trainer.max_epochs)
    return min(limits, default=UNLIMITED)


def count_tokens(batch: Any) -> int:
    """Return the tokens of a batch: the values of its first tensor of integers, or else its number of examples."""
    tensors = _tensors(batch)
    ids = next((one for one in tensors if not one.is_floating_point() and one.ndim >= 2), None)
    if ids is not None:
        return ids.numel()
    return len(tensors[0]) if tensors and tensors[0].ndim else 1


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        named = cast("Mapping[str, Any]", batch)
        first = [named[key] for key in IDS if key in named]
        return [tensor for one in (*first, *named.values()) for tensor in _tensors(one)]
    if isinstance(batch, list | tuple):
        return [tensor for one in cast("list[Any]", batch) for tensor in _tensors(one)]
    return []


def parts_of(trainer: pl.Trainer) -> TrainerParts:
    """Return a Trainer's own parts, made at the first call."""
    callbacks: list[pl.Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]  # set when built
    found = next((one for one in callbacks if isinstance(one, TrainerParts)), None)
    if found is None:
        found = TrainerParts(trainer)
        callbacks.insert(0, found)  # in the midst of their set-up the present callback is then set up twice
    return found


class PlainModel(nn.Module):
    """Anybody's module as a language model: it returns logits [B, T, V] for ids [B, T], itself or as `.logits`."""

    def __init__(self, module: nn.Module, *, max_context_tokens: int = 1 << 30) -> None:
        super().__init__()
        self.module, self.max_context_tokens = module, max_context_tokens
        self.training = module.training

    @override
    def forward(self, tokens: Tensor, targets: Tensor | None = None, *_: Any) -> Any:
        """Return logits; with targets also the sum of nats of those that are not -100, and their number."""
        found = self.module(tokens)
        logits: Tensor = getattr(found, "logits", found)
        if targets is None:
            return logits
        nats = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
        return logits, nats, (targets != -100).sum()


class RunCallback(pl.Callback):
    """A callback that works in a run and in any Trainer.

    `run` is what it runs in: the run's context, or the Trainer's own parts. `context` is a run's, None elsewhere.
    Besides Lightning's hooks it has `on_step_end`, after each optimizer step, and `on_due_step`, after those of
    `step_interval` and, in any Trainer, at the end.

    Example:
        >>> class WeightNorm(RunCallback):
        ...     def __init__(self, *, every_steps, context=None):
        ...         super().__init__(context, step_interval=StepInterval(every_steps, key="weight_norm.every_steps"))
        ...
        ...     def on_due_step(self, trainer, pl_module):
        ...         norm = torch.nn.utils.get_total_norm(pl_module.parameters())
        ...         self.run.append(trainer.global_step, {"my/weight_norm": float(norm)})
    """

    run: RunParts

    def __init__(self, context: RunContext | None = None, *, step_interval: StepInterval | None = None) -> None:
        super().__init__()
        self.context, self.step_interval = context, step_interval
        if context is not None:
            self.run = context  # pyright: ignore[reportAttributeAccessIssue]  # its last step is a cached property

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.context is None:
            self.run = parts_of(trainer)
        if not isinstance(getattr(pl_module, "step_metrics", None), StepMetrics):
            parts_of(trainer)  # watches the losses of a module that keeps none
        if self.step_interval is not None:
            self.step_interval.last_step = self.run.last_step

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.is_step_end(trainer, batch_idx):
            self.on_step_end(trainer, pl_module)

    def is_step_end(self, trainer: pl.Trainer, batch_idx: int) -> bool:
        """Return, in `on_train_batch_end`, whether this micro-batch (from 0) completed an optimizer step.

        Lightning also steps on the last, shorter group of an epoch, and a module may step by itself at any batch.
        """
        return parts_of(trainer).has_stepped if self.context is None else is_step_end(trainer, batch_idx)

    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Act after an optimizer step; without another definition, after the due ones."""
        if self.is_due(trainer.global_step):
            self.on_due_step(trainer, pl_module)

    def on_due_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Act after an optimizer step of `step_interval`."""

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        is_over = self.context is None and not self.run.last_step.goes_on_later
        if is_over and self.step_interval is not None and not self.is_due(trainer.global_step):
            self.on_due_step(trainer, pl_module)  # which step is the last was not known

    def is_due(self, step: int) -> bool:
        """Return whether a step, counted from 1, is one of `step_interval`."""
        return self.step_interval is not None and self.step_interval.includes(step)

    def steps_of(self, trainer: pl.Trainer, module: pl.LightningModule) -> StepMetrics:
        """Return the losses and norms of finished steps."""
        own = getattr(module, "step_metrics", None)
        return own if isinstance(own, StepMetrics) else parts_of(trainer).steps


class OnlyInRun(RunCallback):
    """A callback that belongs to a run of lmtrain: it works with the run's folder, plan and data."""

    context: RunContext  # pyright: ignore[reportIncompatibleVariableOverride]  # after `setup`

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.context is None:  # pyright: ignore[reportUnnecessaryComparison]
            name = type(self).__name__
            raise ConfigurationError(
                f"{name}: must be a callback of a run of lmtrain, got a plain Trainer; leave it out."
            )
        super().setup(trainer, pl_module, stage)
