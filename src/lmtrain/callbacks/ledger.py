"""Write down a run's time by kind as it goes: a killed run leaves its account too."""

import math
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.profilers import PassThroughProfiler
from typing_extensions import override

from lmtrain.accounting.model.flops import trained_flops
from lmtrain.tracking.events import ACCOUNTS
from lmtrain.training.context import RunCallback, RunContext
from lmtrain.training.intervals import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.time_profiler import TimeProfiler


class Ledger(RunCallback):
    """Append the seconds of this process so far, by kind, to its events every `every_steps` steps and at its end.

    An evaluation's compilation counts as compilation. The tokens with loss of this process, and in a run the FLOPs of
    its real batches by the documents of their rows, are written too, unless a failure ends it between two readings. The
    first rank also logs each kind's share and the goodput (the share of computing) of this attempt, and as a worker its
    sent bytes of deltas. It belongs after the other callbacks, to count their work.
    """

    def __init__(self, *, every_steps: int = 10, context: RunContext | None = None) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.ledger.every_steps"))
        self._second_step = 0  # of this process
        self._compiled_before = 0.0  # the first step, in evaluations: seconds
        self._counted: tuple[int, int, float] | None = None  # a step; tokens with loss and FLOPs of attention until it

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._stopwatch = self.run.events.stopwatch
        if isinstance(trainer.profiler, PassThroughProfiler):  # pyright: ignore[reportAttributeAccessIssue]
            trainer.profiler = TimeProfiler(self._stopwatch)  # pyright: ignore[reportAttributeAccessIssue]
        self.run.events.mark(ACCOUNTS)
        self.run.events.flush()  # of a run killed in its first validation, too, the time is known

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._second_step = trainer.global_step + 2
        self._compiled_before = self._stopwatch.seconds()["compile"]
        self._counted = trainer.global_step, 0, 0.0
        self._write(trainer.global_step)

    @override
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step == self._second_step:
            self._part_first_step(self._stopwatch.seconds()["compute"])
        if self.is_due(trainer.global_step):
            self._count(trainer, pl_module)
            seconds = self._write(trainer.global_step)
            self.run.events.flush()  # the log has this step: what a kill repeats is then known as lost
            outer = pl_module.outer if isinstance(pl_module, CausalLMModule) else None
            sent = {} if outer is None else {"communication/sent_bytes": outer.sent_bytes}
            self._log(trainer.global_step, seconds, sent)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write here too: the next attempt goes on from this step, and none before it is lost time."""
        self._count(trainer, pl_module)
        self._write(trainer.global_step)
        self.run.events.flush()  # of a run killed soon after, too, these steps are known as done

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._count(trainer, pl_module)
        if trainer.global_step == self._second_step - 1 and not self._is_compiled:
            self._part_first_step(math.inf)
        self._write(trainer.global_step)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if hasattr(self, "run"):  # it was set up
            self._write(trainer.global_step)

    @property
    def _is_compiled(self) -> bool:
        return self.context is not None and bool(self.context.plan.is_compiled)

    def _count(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        steps = self.steps_of(trainer, module)
        self._counted = trainer.global_step, steps.trained_tokens, steps.attention_flops

    def _part_first_step(self, most: float) -> None:
        """Count at most `most` seconds of the first step as training, the rest as compilation or else as set-up."""
        in_first_step = max(0.0, self._stopwatch.seconds()["compile"] - self._compiled_before)
        trained = min(most, in_first_step)
        self._stopwatch.move(trained, source="compile", target="compute")
        if not self._is_compiled:
            self._stopwatch.move(in_first_step - trained, source="compile", target="setup")

    def _write(self, step: int) -> dict[str, float]:
        seconds: dict[str, float] = {kind: round(spent, 6) for kind, spent in self._stopwatch.seconds().items()}
        counted = self._counted_until(step) if self._counted and self._counted[0] == step else {}
        self.run.events.mark("ledger", step=step, **counted, **seconds)
        return seconds

    def _counted_until(self, step: int) -> dict[str, float]:
        assert self._counted is not None
        _, tokens, attention_flops = self._counted
        if self.context is None:
            return {"tokens": tokens}
        plan, num_steps = self.context.plan, step - (self._second_step - 2)
        num_tokens, context_tokens = num_steps * plan.batch.tokens_per_step, plan.batch.context_tokens
        flops = trained_flops(plan.shape, num_tokens, context_tokens, attention_flops=attention_flops)
        return {"tokens": tokens, "flops": flops}

    def _log(self, step: int, seconds: dict[str, float], sent: dict[str, float]) -> None:
        total = sum(seconds.values())
        metrics = {f"time/{kind}_share": spent / total for kind, spent in seconds.items()}
        metrics["speed/goodput"] = metrics["time/compute_share"]
        self.run.append(step, metrics | sent)
