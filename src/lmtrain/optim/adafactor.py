"""Adafactor (https://arxiv.org/abs/1804.04235): a matrix's second moment from its rows and columns.

State and settings are those of torch's class. Its step asks the device for two norms of every tensor (torch 2.13) and
the host waits for each; here they stay on the device.
"""

from collections.abc import Callable
from math import inf
from typing import Any, final

import torch
from torch import Tensor, nn

from lmtrain.accounting.model.optimizer_state import OptimizerState
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.ranges import Range
from lmtrain.optim.adamw_update import State, gradient_of, step_groups
from lmtrain.optim.parameter_groups import Group, parameter_groups


def adafactor(
    model: nn.Module,
    *,
    lr: float,
    beta2_decay: float = -0.8,
    relative_eps: float = 1e-3,
    clip_threshold: float = 1.0,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build Adafactor over `model`; it keeps no momentum.

    lr: relative to the root mean square of each tensor, or to a larger `relative_eps`.
    beta2_decay: the second moment's decay is 1 - step ** beta2_decay.
    clip_threshold: largest root mean square of an update, before the learning rate.
    """
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    for group in groups:
        group["capturable"] = True  # lets load_state_dict keep step counts on the device
    return Adafactor(
        groups, lr=lr, beta2_decay=beta2_decay, eps=(None, relative_eps), d=clip_threshold, weight_decay=0.0
    )


def adafactor_facts() -> OptimizerFacts:
    """Keep a row and a column of a matrix's second moment, and all of a vector's.

    torch's class needs whole parameters: its squares of partial sums are in place (2.11 to 2.13).
    """
    return OptimizerFacts(
        state=OptimizerState(per_matrix_value=0, per_table_value=0, per_vector_value=1, per_edge=1),
        takes_shards=False,
        without_rule="its steps are shares of a tensor's own size, which width changes already",
        ranges={
            "beta2_decay": Range(low=-inf, high=0.0, is_open=False, usual="-0.8"),
            "clip_threshold": Range(low=1.0, usual="1"),
            "relative_eps": Range(usual="0.001"),
        },
    )


@final
class Adafactor(torch.optim.Adafactor):
    """torch's Adafactor with a step free of waits for the device; `adafactor` builds it."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter with a gradient; return the closure's loss."""
        return step_groups(self, closure, self._step_group)

    def _step_group(self, parameters: list[nn.Parameter], group: Group, _: torch.Generator | None) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = _start(gradient_of(parameter))
            _update(parameter, gradient_of(parameter), self.state[parameter], group)


def _start(gradient: Tensor) -> State:
    step = torch.zeros((), device=gradient.device)
    if gradient.ndim < 2:
        return {"step": step, "variance": torch.zeros_like(gradient)}
    *stack, num_rows, num_columns = gradient.shape
    return {
        "step": step,
        "row_var": gradient.new_zeros(*stack, num_rows, 1),
        "col_var": gradient.new_zeros(*stack, 1, num_columns),
    }


def _update(parameter: Tensor, gradient: Tensor, state: State, group: Group) -> None:
    """Move one parameter; order and roundings are those of torch's class."""
    eps: float = torch.finfo(parameter.dtype).eps
    step = state["step"].add_(1.0)
    rate = step.rsqrt().clamp(max=group["lr"])
    size = _root_mean_square(parameter).clamp(min=group["eps"][1]) * rate
    if group["weight_decay"]:
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
    estimate = _second_moment(gradient, state, share=step ** group["beta2_decay"], eps=eps)
    update = estimate.clamp_(min=eps * eps).rsqrt_().mul_(gradient)
    parameter.sub_(update * (size / (_root_mean_square(update) / group["d"]).clamp(min=1.0)))


def _second_moment(gradient: Tensor, state: State, *, share: Tensor, eps: float) -> Tensor:
    """Take in `share` [] of the squared gradient and return the estimate for every value."""
    share = share.to(gradient.dtype)
    if gradient.ndim < 2:
        return state["variance"].lerp_(gradient.square(), share).clone()
    rows = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True).square_().div_(gradient.shape[-1])
    columns = torch.linalg.vector_norm(gradient, dim=-2, keepdim=True).square_().div_(gradient.shape[-2])
    row_var, col_var = state["row_var"].lerp_(rows, share), state["col_var"].lerp_(columns, share)
    return (row_var @ col_var).div_(row_var.mean(dim=-2, keepdim=True).clamp_(min=eps))


def _root_mean_square(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.float32) / tensor.numel() ** 0.5
