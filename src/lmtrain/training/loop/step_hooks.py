"""The hooks of a step, looked up once: Lightning asks every callback for each anew, some eighty times a step."""
# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false

from collections.abc import Callable
from typing import Any, Final

import lightning.pytorch as pl
from lightning.pytorch.profilers import Profiler

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
    """Return whether an object has a hook of its own, by its class or given to it, rather than the empty one."""
    return name in vars(of) or getattr(type(of), name) is not getattr(base, name)
