"""The Trainer's innermost loop with less Python in it: the same hooks, counters and results as Lightning's (2.6.6).

Lightning's own takes about 0.7 ms of Python a step on a CPU: it looks every hook up again, opens a profiler's context
around each, inspects `training_step`'s signature, and gathers `self.log` where nothing logs. A test lets both loops
train next to each other and compares every hook, counter and weight.
"""
# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false, reportMissingTypeStubs=false
# (the loops are private in Lightning; the range of versions in pyproject is narrow for that)

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import lightning.pytorch as pl
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.loops.utilities import _block_parallel_sync_behavior
from lightning.pytorch.profilers import Profiler
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.training.process_settings import settle_objects

if TYPE_CHECKING:
    from lmtrain.training.replica_groups import ReplicaGroups

HOOKS_OF_A_MOVE: Final = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


HOOKS_OF_A_STEP: Final = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)
# Those beside the computing: within it, all time is computing's.
PROFILED_HOOKS: Final = ("on_train_batch_start", "on_train_batch_end")


class StepHooks:
    """The actions of callbacks and module at each hook of a step, in Lightning's order: callbacks, then the module.

    Callbacks added while training goes on are not called before the next `fit`.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._profiler: Profiler = trainer.profiler  # pyright: ignore[reportAttributeAccessIssue]  # set when built
        self._module = trainer.lightning_module
        callbacks: list[pl.Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]  # set when built
        self._labels = {name: f"[Callback].{name}" for name in PROFILED_HOOKS}
        self._of_callbacks: dict[str, list[Callable[..., Any]]] = {
            name: [getattr(one, name) for one in callbacks if is_defined(one, name, pl.Callback)]
            for name in HOOKS_OF_A_STEP
        }
        self._of_module: dict[str, Callable[..., Any] | None] = {
            name: getattr(self._module, name) if is_defined(self._module, name, pl.LightningModule) else None
            for name in HOOKS_OF_A_STEP
        }

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a hook of all with one, and return the module's result."""
        of_callbacks, of_module = self._of_callbacks[name], self._of_module[name]
        if not of_callbacks and of_module is None:
            return None
        # `self.log` wants to know the hook; a module sets attributes slowly, a dict does not.
        module = self._module
        outer, vars(module)["_current_fx_name"] = module._current_fx_name, name
        if of_callbacks and name in self._labels:
            with self._profiler.profile(self._labels[name]):
                for hook in of_callbacks:
                    hook(self._trainer, module, *arguments)
        else:
            for hook in of_callbacks:
                hook(self._trainer, module, *arguments)
        result = None if of_module is None else of_module(*arguments)
        vars(module)["_current_fx_name"] = outer
        return result


def is_defined(of: object, name: str, base: type) -> bool:
    """Return whether an object defines a hook, by its class or given to it, rather than the empty one."""
    return name in vars(of) or getattr(type(of), name) is not getattr(base, name)


class StepLoop(_TrainingEpochLoop):
    """Runs micro-batches of a module written for it, which says so by `runs_in_step_loop`; any other as Lightning does.

    Such a module has one optimizer, automatic optimization, and a `training_step` of a batch and its index.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        old = trainer.fit_loop.epoch_loop
        super().__init__(trainer, min_steps=old.min_steps, max_steps=old.max_steps)
        self.automatic_optimization = StepOptimization(trainer)
        self._validates = True  # until a run begins
        self._is_fast = False
        self.groups: ReplicaGroups | None = None

    @property
    @override
    def global_step(self) -> int:
        """Return the optimizer steps so far: callbacks ask some sixteen times a step.

        Under manual optimization they are batches, whose place in the data a resume needs: Lightning would add up the
        steps of all optimizers.
        """
        if not self._is_fast:
            module: Any = self.trainer.lightning_module  # None before a training
            is_manual = module is not None and not module.automatic_optimization
            batches: Any = self.batch_progress.total  # of three counts, where its type names two (2.6)
            return batches.processed if is_manual else super().global_step
        return self.automatic_optimization.optim_progress.optimizer_steps

    @override
    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        super().on_run_start(data_fetcher)
        trainer = self.trainer
        self._validates = trainer.enable_validation
        self._is_fast = getattr(trainer.lightning_module, "runs_in_step_loop", False)
        if not self._is_fast:
            return
        self._hooks = StepHooks(trainer)
        self.automatic_optimization.begin(self._hooks, self.groups)
        if hasattr(trainer.precision_plugin, "step_hooks"):
            trainer.precision_plugin.step_hooks = self._hooks  # pyright: ignore[reportAttributeAccessIssue]
        movers = [trainer.lightning_module, trainer.datamodule]  # pyright: ignore[reportAttributeAccessIssue]  # set when built
        self._is_moved_as_it_is = not any(
            is_defined(one, name, DataHooks) for one in movers if one is not None for name in HOOKS_OF_A_MOVE
        )
        self._stays = self._is_moved_as_it_is and trainer.strategy.root_device.type == "cpu"
        self._is_settled = trainer.strategy.root_device.type == "cpu"  # waits there hide no collection
        self._convert = trainer.precision_plugin.convert_input

    @override
    def advance(self, data_fetcher: _DataFetcher) -> None:
        if self.restarting or not self._is_fast:
            super().advance(data_fetcher)
            return
        trainer = self.trainer
        batch, _, _ = next(data_fetcher)
        batch_idx = self.batch_idx + 1
        self.batch_progress.is_last_batch = data_fetcher.done
        batch = self._on_device(self._convert(batch))
        self.batch_progress.increment_ready()
        self._begin_results(batch)
        ends_here = self._hooks.call("on_train_batch_start", batch, batch_idx) == -1
        output = None
        if ends_here:
            self.batch_progress.increment_by(0, is_last_batch=True)
        else:
            self.batch_progress.increment_started()
            with trainer.profiler.profile("run_training_batch"):  # pyright: ignore[reportAttributeAccessIssue]
                output = self.automatic_optimization.run(
                    trainer.optimizers[0], batch_idx, {"batch": batch, "batch_idx": batch_idx}
                )
        self.batch_progress.increment_processed()
        if trainer.lr_scheduler_configs:
            self.update_lr_schedulers("step", update_plateau_schedulers=False)
            if self._num_ready_batches_reached():
                self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        if ends_here:
            raise StopIteration
        self._hooks.call("on_train_batch_end", output, batch, batch_idx)
        self._end_results()
        self.batch_progress.increment_completed()
        if not self._is_settled and not self._should_accumulate():
            self._is_settled = True
            settle_objects()

    def go_to(self, step: int) -> None:
        """Count on from a step, from 0, in its last micro-batch: other jobs have reached it."""
        done = (step + 1) * self.trainer.accumulate_grad_batches - 1
        for batches in (self.batch_progress.total, self.batch_progress.current):
            vars(batches).update(ready=done + 1, started=done + 1, processed=done, completed=done)
        progress = self.automatic_optimization.optim_progress.optimizer.step
        for steps in (progress.total, progress.current):
            steps.ready, steps.completed = step + 1, step

    @override
    def teardown(self) -> None:
        super().teardown()
        if self.groups is not None:
            self.groups.end()

    @override
    def _broadcast_sigterm_tensor(self) -> None:
        """Send nothing: Lightning's own broadcasts a flag and waits for it at every micro-batch."""

    def _on_device(self, batch: Any) -> Any:
        trainer = self.trainer
        if self._stays:
            return batch
        if self._is_moved_as_it_is:
            return move_data_to_device(batch, trainer.strategy.root_device)
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    def _begin_results(self, batch: Any) -> None:
        """Let `self.log` know the batch, as Lightning's connector does."""
        connector = self.trainer._logger_connector
        connector._first_loop_iter = connector._first_loop_iter is None
        results = self._results
        results.batch, results.batch_size, results.dataloader_idx = batch, None, None

    def _end_results(self) -> None:
        """Gather the values given to `self.log`, if any."""
        results, connector = self._results, self.trainer._logger_connector
        if results:
            connector.on_batch_end()
            connector.update_train_step_metrics()
        results.batch = None

    @override
    def _should_accumulate(self) -> bool:
        return self.trainer.accumulate_grad_batches > 1 and super()._should_accumulate()

    @override
    def _should_check_val_epoch(self) -> bool:
        return self._validates and super()._should_check_val_epoch()


class StepOptimization(_AutomaticOptimization):
    """Forward, backward and, at the end of a window, the optimizer's step; Lightning's own until `begin`."""

    _hooks: StepHooks | None = None

    def begin(self, hooks: StepHooks, groups: "ReplicaGroups | None" = None) -> None:
        """Look up the constants of a run; the Trainer asks its strategy for each of them every time."""
        self._groups, self._kept, self._loss = groups, list[Any](), None
        self._hooks, self._strategy = hooks, self.trainer.strategy
        module = self._strategy.lightning_module
        assert module is not None
        self._module, self._window = module, self.trainer.accumulate_grad_batches
        self._optimizer = self._strategy._lightning_optimizers[0]

    @override
    def run(self, optimizer: Optimizer, batch_idx: int, kwargs: Any) -> Any:
        if self._hooks is None:
            return super().run(optimizer, batch_idx, kwargs)
        closure = partial(self._forward_backward, optimizer, *kwargs.values())
        if self._groups is not None:
            self._kept.append(kwargs["batch"])
            if not self.trainer.fit_loop._should_accumulate():
                batches, self._kept = self._kept, []
                train = partial(self._groups.train, batches, partial(self._forward_backward, optimizer))
                self._optimizer_step(batch_idx, train)
        elif self._strategy.handles_gradient_accumulation or not self.trainer.fit_loop._should_accumulate():
            self._optimizer_step(batch_idx, closure)
        else:
            with _block_parallel_sync_behavior(self._strategy, block=True):
                closure()
        loss, self._loss = self._loss, None
        return {"loss": loss}

    def _forward_backward(self, optimizer: Optimizer, batch: Any, batch_idx: int) -> Tensor:
        module, strategy = self._module, self._strategy
        outer, vars(module)["_current_fx_name"] = module._current_fx_name, "training_step"  # as in the hooks
        loss: Tensor = strategy.training_step(batch, batch_idx)  # pyright: ignore[reportAssignmentType]
        vars(module)["_current_fx_name"] = outer
        if self._window > 1:
            loss = loss / self._window
        if batch_idx % self._window == 0:
            self._zero_gradients(optimizer, batch_idx)
        strategy.backward(loss, optimizer)
        self._loss = loss.detach()
        return self._loss

    def _zero_gradients(self, optimizer: Optimizer, batch_idx: int) -> None:
        progress = self.optim_progress.optimizer.zero_grad
        progress.increment_ready()
        assert self._hooks is not None
        self._hooks.call("on_before_zero_grad", optimizer)
        progress.increment_started()
        self._module.optimizer_zero_grad(self.trainer.current_epoch, batch_idx, optimizer)
        progress.increment_completed()

    @override
    def _optimizer_step(self, batch_idx: int, train_step_and_backward_closure: Any) -> None:
        if self._hooks is None:
            super()._optimizer_step(batch_idx, train_step_and_backward_closure)
            return
        is_step = not self.trainer.fit_loop._should_accumulate()  # an accumulating strategy is called at every one
        progress = self.optim_progress.optimizer.step
        if is_step:
            progress.increment_ready()
        self._module.optimizer_step(
            self.trainer.current_epoch, batch_idx, self._optimizer, train_step_and_backward_closure
        )
        if is_step:
            progress.increment_completed()
