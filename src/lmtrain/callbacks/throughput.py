"""Training speed, its share of the hardware's peak, memory, and in a run also its cost so far.

Utilization is by the two conventions of accounting.flops, over the dense peak of the device.
"""

import contextlib
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.observed.metric_names import LOSS_SHARE
from lmtrain.accounting.training_plan.utilization import model_flops_utilization, usd
from lmtrain.errors import ConfigurationError
from lmtrain.training.context import RunCallback, RunContext, parts_of
from lmtrain.training.intervals import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.peak import device_peak
from lmtrain.training.step_timer import peak_bytes

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Mark:
    """A moment: steps done, tokens trained on (None: those of the first step), seconds of training without pauses."""

    step: int
    tokens: int | None
    seconds: float


class Throughput(RunCallback):
    """Log tokens per second, MFU and memory every `every_steps` steps and at the end; a run also dollars.

    Memory is the peak of this rank: of a GPU's tensors, on a CPU of the whole process.

    Speed leaves out the pauses of lmtrain's other callbacks, and the first step of a process, with its compilation.
    Only tokens with loss count. Dollars are for all the time the devices are held by this attempt of the run and those
    before it; the projection adds the remaining steps, at this attempt's pace with its validations and checkpoints.

    In a plain Trainer MFU needs `flops_per_token` of training (None: 6 a parameter), and `peak_flops` of one device
    (None: a table's, for a known GPU); without a known peak MFU is not logged.

    Example:
        >>> trainer = lightning.Trainer(callbacks=[lmtrain.callbacks.Throughput(every_steps=10)])
    """

    def __init__(
        self,
        *,
        every_steps: int = 10,
        flops_per_token: float | None = None,
        peak_flops: float | None = None,
        context: RunContext | None = None,
    ) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.throughput.every_steps"))
        self._flops_per_token, self._peak_flops = flops_per_token, peak_flops
        self._mark: _Mark | None = None
        self._began_at_step, self._began_seconds = 0, 0.0
        self._first_step = contextlib.ExitStack()
        self._warned = False

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._began_at_step, self._began_seconds = trainer.global_step, self._training_seconds()
        if self.context is None:
            self._measure_module(trainer, pl_module)
        elif self.context.plan.peak_flops is None:
            self._warn(trainer, "No MFU: this device has no known peak; set cluster.peak_flops to its dense peak.")

    def _measure_module(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Look up what a run's plan would have: the FLOPs of a token, and the peak of this device."""
        if self._flops_per_token is None:
            self._flops_per_token = 6.0 * sum(one.numel() for one in module.parameters() if one.requires_grad)
        if self._peak_flops is None and module.device.type == "cuda":
            matmul = (
                "bf16" if "bf16" in str(trainer.precision) else "fp16" if "16" in str(trainer.precision) else "fp32"
            )
            peak = device_peak(Cluster(name="here"), matmul=matmul, accelerator="gpu")
            self._peak_flops = None if peak is None else peak.flops

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._mark is None and batch_idx % trainer.accumulate_grad_batches == 0:
            self._first_step.enter_context(self.run.events.pause("first_step", step=trainer.global_step + 1))

    @override
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._mark is None:
            self._first_step.close()
            self._mark = _Mark(trainer.global_step, None, self._training_seconds())
        if self.is_due(trainer.global_step):
            self._append(trainer, pl_module)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._append(trainer, pl_module)
        is_over = not self.run.last_step.goes_on_later
        cost = self._cost(trainer.global_step, trainer.world_size, is_over=is_over)  # with the last validation
        if cost:
            self.run.append(trainer.global_step, cost)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._first_step.close()

    def _append(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Log the interval since the last point; nothing if no step was timed in it."""
        before = self._mark
        if before is None or trainer.global_step == before.step or not trainer.is_global_zero:
            return
        if module.device.type != "cpu" and not isinstance(module, CausalLMModule):
            self.steps_of(trainer, module).drain()  # waits for the steps to be timed
        trained, first_step = self._tokens(trainer, module)
        now = _Mark(trainer.global_step, trained, self._training_seconds())
        tokens = trained - (first_step if before.tokens is None else before.tokens)
        self._mark = now
        seconds = now.seconds - before.seconds
        tokens_per_second = tokens / seconds
        metrics = {
            "memory/peak_bytes": float(peak_bytes(module.device)),
            "speed/tokens_per_second": tokens_per_second,
            "speed/timed_seconds": seconds,
            **self._utilization(trainer, tokens_per_second),
        }
        if self.context is not None:
            plan = self.context.plan
            metrics[LOSS_SHARE] = tokens / ((now.step - before.step) * plan.batch.tokens_per_step)
        self.run.append(now.step, metrics | self._cost(now.step, trainer.world_size))

    def _tokens(self, trainer: pl.Trainer, module: pl.LightningModule) -> tuple[int, int]:
        """Return the tokens with loss of this process's steps so far, and of the first of them."""
        if isinstance(module, CausalLMModule):
            return module.step_metrics.trained_tokens, module.step_metrics.first_step_tokens
        parts = parts_of(trainer)
        return parts.num_tokens, parts.first_step_tokens

    def _utilization(self, trainer: pl.Trainer, tokens_per_second: float) -> dict[str, float]:
        plan = None if self.context is None else self.context.plan
        peak = self._peak_flops if plan is None else plan.peak_flops
        if peak is None:
            return {}
        utilization = partial(
            model_flops_utilization,
            tokens_per_second=tokens_per_second,
            peak_flops=peak,
            num_devices=trainer.world_size * self.steps_of(trainer, trainer.lightning_module).num_groups,
        )
        try:
            if plan is None:
                return {"speed/mfu": utilization(self._flops_per_token or 0.0)}
            flops = plan.flops_per_token
            return {"speed/mfu_palm": utilization(flops.palm), "speed/mfu_causal": utilization(flops.causal)}
        except ConfigurationError as problem:  # the numbers are wrong, the training is not: say so once and go on
            self._warn(trainer, f"No MFU: {problem}; set cluster.peak_flops to the device's dense peak.")
            return {}

    def _cost(self, step: int, num_devices: int, *, is_over: bool = False) -> dict[str, float]:
        """Return dollars so far and of the whole run, if there is a price."""
        context = self.context
        if context is None or (price := context.plan.usd_per_gpu_hour) is None:
            return {}
        left = 0.0 if is_over else self._seconds_left(context, step)
        so_far = context.spent_device_seconds(num_devices)
        return {
            f"cost/{when}usd": usd(spent, num_devices=1, usd_per_gpu_hour=price)
            for when, spent in {"": so_far, "projected_": so_far + left * num_devices}.items()
        }

    def _seconds_left(self, context: RunContext, step: int) -> float:
        """Return how long the run goes on at this attempt's pace with its pauses, no longer than its budget of time."""
        last_step, done = context.last_step, max(1, step - self._began_at_step)
        pace = (self._training_seconds() - self._began_seconds) / done
        left = pace * (last_step.steps - step) + context.pauses_to_come(step, step_seconds=pace)
        return left if last_step.seconds is None else min(left, max(0.0, last_step.seconds - context.spent_seconds()))

    def _training_seconds(self) -> float:
        return time.monotonic() - self.run.events.paused_seconds

    def _warn(self, trainer: pl.Trainer, message: str) -> None:
        if trainer.is_global_zero and not self._warned:
            self._warned = True
            _LOG.warning(message)
