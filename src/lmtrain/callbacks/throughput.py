"""A run's speed, its share of the hardware's peak, its memory, and its cost so far.

Utilization is by the two conventions of accounting.flops, over the dense peak in the plan.
"""

import contextlib
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.cluster import MEASURED
from lmtrain.accounting.observed.metric_names import LOSS_SHARE
from lmtrain.accounting.observed.time_accounts import Passes, seconds_left
from lmtrain.accounting.training_plan.utilization import kwh, model_flops_utilization, usd
from lmtrain.errors import ConfigurationError
from lmtrain.training.context import RunContext
from lmtrain.training.loop.step_interval import StepInterval
from lmtrain.training.loop.steps import is_step_end
from lmtrain.training.measuring.step_timer import peak_bytes
from lmtrain.training.module import CausalLMModule

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Mark:
    """A moment: steps done, tokens trained on (None: those of the first step), seconds of training without pauses."""

    step: int
    tokens: int | None
    seconds: float


class Throughput(pl.Callback):
    """Append tokens/s, MFU, dollars, energy and memory every `every_steps` steps, and at the end.

    Memory is the most so far of this rank: of a GPU's tensors, on a CPU of the whole process.

    Speed leaves out the pauses in `context.events`, and the first step of a process, with its compilation. Only tokens
    with loss count: padding is none, and neither are tokens left out by a chat's mask. Dollars and kWh (at the
    devices' rated power) are for all the time the devices are held, by this attempt of the run and those before it; the
    projection adds the remaining steps, at this attempt's pace with its validations and checkpoints.
    """

    def __init__(self, *, every_steps: int, context: RunContext) -> None:
        super().__init__()
        self._context = context
        self._interval = StepInterval(every_steps, last_step=context.last_step, key="callbacks.throughput.every_steps")
        self._mark: _Mark | None = None
        self._began_at_step = 0
        self._first_step = contextlib.ExitStack()
        self._warned = False

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._began_at_step = trainer.global_step
        if self._context.plan.peak_flops is None:
            self._warn(
                f"No MFU: the peak of this device is not known ({self._context.plan.peak_source}); "
                "set cluster.peak_flops to its dense peak in FLOP/s."
            )

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._mark is None and batch_idx % trainer.accumulate_grad_batches == 0:
            self._first_step.enter_context(self._context.events.pause("first_step", step=trainer.global_step + 1))

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not is_step_end(trainer, batch_idx):
            return
        if self._mark is None:
            self._first_step.close()
            self._mark = _Mark(trainer.global_step, None, self._training_seconds())
        if self._interval.is_due(trainer, batch_idx):
            self._append(trainer, pl_module)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._append(trainer, pl_module)
        is_over = not self._context.last_step.goes_on_later
        cost = self._cost(trainer.global_step, trainer.world_size, is_over=is_over)  # with the last validation
        if cost:
            self._context.append(trainer.global_step, cost)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._first_step.close()

    def _append(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Append the interval since the last point; nothing where no step was timed in it."""
        assert isinstance(module, CausalLMModule)
        before = self._mark
        if before is None or trainer.global_step == before.step or self._context.log is None:
            return
        counted = module.step_metrics
        now = _Mark(trainer.global_step, counted.trained_tokens, self._training_seconds())
        tokens = counted.trained_tokens - (counted.first_step_tokens if before.tokens is None else before.tokens)
        self._mark = now
        seconds = now.seconds - before.seconds
        tokens_per_second = tokens / seconds
        metrics = {
            "memory/peak_bytes": peak_bytes(module.device),
            "speed/tokens_per_second": tokens_per_second,
            "speed/timed_seconds": seconds,
            LOSS_SHARE: tokens / ((now.step - before.step) * self._context.plan.batch.tokens_per_step),
            **self._utilization(tokens_per_second, trainer.world_size),
            **self._efficiency(tokens_per_second, trainer.world_size),
            **self._cost(now.step, trainer.world_size),
        }
        self._context.append(now.step, metrics)

    def _utilization(self, tokens_per_second: float, num_devices: int) -> dict[str, float]:
        plan = self._context.plan
        if plan.peak_flops is None:
            return {}
        utilization = partial(
            model_flops_utilization,
            tokens_per_second=tokens_per_second,
            peak_flops=plan.peak_flops,
            num_devices=num_devices,
        )
        try:
            return {
                "speed/mfu_palm": utilization(plan.flops_per_token.palm),
                "speed/mfu_causal": utilization(plan.flops_per_token.causal),
            }
        except ConfigurationError as problem:  # the numbers are wrong, the training is not: say so once and go on
            is_measured = plan.peak_source.startswith(MEASURED)
            fix = "`lmtrain doctor` measures it again" if is_measured else "set cluster.peak_flops to its dense peak"
            self._warn(f"No MFU: {problem}; the peak is {plan.peak_source}; {fix}.")
            return {}

    def _efficiency(self, tokens_per_second: float, num_devices: int) -> dict[str, float]:
        """Return a device's share of its speed by itself, where `doctor --calibrate` has measured it."""
        alone = self._context.plan.single_device_tokens_per_second
        return {"speed/scaling_efficiency": tokens_per_second / num_devices / alone} if alone else {}

    def _cost(self, step: int, num_devices: int, *, is_over: bool = False) -> dict[str, float]:
        """Return dollars and kWh so far and of the whole run, where there is a price or a rated power."""
        context, plan = self._context, self._context.plan
        left = 0.0 if is_over else self._seconds_left(step)
        so_far = context.spent_device_seconds(num_devices)
        device_seconds = {"": so_far, "projected_": so_far + (left or 0.0) * num_devices}
        found: dict[str, float] = {}
        for when, spent in device_seconds.items():
            if (price := plan.usd_per_gpu_hour) is not None:
                found[f"cost/{when}usd"] = usd(spent, num_devices=1, usd_per_gpu_hour=price)
            if (watts := plan.device_watts) is not None:
                found[f"energy/{when}kwh"] = kwh(spent, num_devices=1, device_watts=watts)
        return found

    def _seconds_left(self, step: int) -> float | None:
        """Return how long the run goes on at this attempt's pace, no longer than its budget of time."""
        context, last_step = self._context, self._context.last_step
        return seconds_left(
            {str(kind): spent for kind, spent in context.events.stopwatch.seconds().items()},
            steps_done=step - self._began_at_step,
            steps_left=last_step.steps - step,
            passes=self._passes(step),
            at_most=None if last_step.seconds is None else last_step.seconds - context.spent_seconds(),
        )

    def _passes(self, step: int) -> Passes | None:
        """Return the passes over held-out text of this attempt, and those left: one of this very step is to come."""
        plan, num_steps = self._context.plan, self._context.last_step.steps
        if (evaluation := plan.evaluation) is None:
            return None
        done = evaluation.passes_by(step - 1, num_steps=num_steps)
        earlier = evaluation.passes_by(self._began_at_step, num_steps=num_steps) if self._began_at_step else 0
        each = evaluation.pass_seconds(step_seconds=1.0, tokens_per_step=plan.batch.tokens_per_step)
        return Passes(done=max(0, done - earlier), left=evaluation.num_passes - done, steps_each=each)

    def _training_seconds(self) -> float:
        return time.monotonic() - self._context.events.paused_seconds

    def _warn(self, message: str) -> None:
        if self._context.is_main_process and not self._warned:
            self._warned = True
            _LOG.warning(message)
