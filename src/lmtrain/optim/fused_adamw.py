"""torch's fused AdamW with less Python in a step: the same kernel and state, looked up once.

torch's own step (2.13) walks all parameters and their state and sorts them by device and format every time: a third of
a millisecond on a CPU between the products of a small model.
"""
# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false
# (torch's kernels of many tensors have no public name; its own optimizers call them so, too)

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import torch
import torch.optim.optimizer as torch_optimizer
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from typing_extensions import override

from lmtrain.optim.closure import loss_of

Group = dict[str, Any]
# Without its wrappers: those of our own step call the hooks.
STEP_OF_TORCH: Final[Callable[[torch.optim.Optimizer], Any]] = inspect.unwrap(torch.optim.AdamW.step)


@dataclass(frozen=True)
class _Tensors:
    """A group's parameters, and what the kernel keeps of each."""

    group: Group
    parameters: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    steps: list[Tensor]


@final
class FusedAdamW(torch.optim.AdamW):
    """A step goes torch's way where a parameter has no gradient, is sharded, or a learning rate is a tensor."""

    _found: list[_Tensors] | None = None  # of all groups, once every parameter has its state
    _is_plain: bool | None = None  # until the first step
    _steps: list[Tensor]

    @override
    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group(param_group)
        self._found = self._is_plain = None

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._found = None

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient; return what the closure returns."""
        return WATCHED_STEP(self, closure) if self._is_watched() else self._step(closure)

    def _is_watched(self) -> bool:
        """Tell whether hooks wait for a step, or a profiler."""
        hooks = (self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks)
        of_all = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
        return any(hooks) or any(of_all) or torch.autograd._profiler_enabled()

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss = loss_of(closure)
        gradients: list[list[Tensor]] = [
            [parameter.grad for parameter in group["params"] if parameter.grad is not None]
            for group in self.param_groups
        ]
        with torch.no_grad():
            if self._found is not None and sum(map(len, gradients)) == len(self._steps):
                self._update(self._found, gradients)
            else:
                STEP_OF_TORCH(self)
                self._found = self._find()
        return loss

    def _update(self, found: list[_Tensors], gradients: list[list[Tensor]]) -> None:
        grad_scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        torch._foreach_add_(self._steps, 1)  # as torch's own step
        for one, of_group in zip(found, gradients, strict=True):
            group = one.group
            torch._fused_adamw_(
                one.parameters, of_group, one.means, one.squares, [], one.steps, amsgrad=False, maximize=False,
                lr=group["lr"], beta1=group["betas"][0], beta2=group["betas"][1], eps=group["eps"],
                weight_decay=group["weight_decay"], grad_scale=grad_scale, found_inf=found_inf,
            )  # fmt: skip
        if found_inf is not None:
            torch._foreach_sub_(self._steps, [found_inf] * len(self._steps))

    def _find(self) -> list[_Tensors] | None:
        """Look up every group; None where a step is more than a launch of the kernel for each."""
        if self._is_plain is None:
            self._is_plain = all(map(_is_one_launch, self.param_groups))
        if not self._is_plain:
            return None
        states = [[self.state.get(parameter) for parameter in group["params"]] for group in self.param_groups]
        known: list[list[Group]] = [[state for state in of_group if state] for of_group in states]
        if list(map(len, known)) != list(map(len, states)):
            return None
        names = ("exp_avg", "exp_avg_sq", "step")
        found = [
            _Tensors(group, group["params"], *([state[name] for state in of_group] for name in names))
            for group, of_group in zip(self.param_groups, known, strict=True)
        ]
        self._steps = [step for one in found for step in one.steps]
        return found


# torch wraps the step of a class that is not marked so: hooks, and a name for profilers that costs 90 microseconds.
FusedAdamW.step.hooked = True  # pyright: ignore[reportFunctionMemberAccess]
WATCHED_STEP: Final = torch.optim.Optimizer.profile_hook_step(FusedAdamW._step)


def _is_one_launch(group: Group) -> bool:
    """Tell whether one launch of the kernel is all that a step of this group is."""
    parameters = group["params"]
    kinds = {(parameter.device, parameter.dtype) for parameter in parameters}
    options = (group["amsgrad"], group["maximize"], group["capturable"], group["differentiable"])
    return (
        len(kinds) == 1
        and group["fused"]
        and not any(options)
        and not isinstance(group["lr"], Tensor)
        and not any(parameter.is_complex() or is_traceable_wrapper_subclass(parameter) for parameter in parameters)
    )
