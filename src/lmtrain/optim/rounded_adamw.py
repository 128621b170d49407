"""AdamW computed in fp32 and kept in bf16, where torch's own would round small changes away.

A second moment in bf16, rounded to nearest, never fades: it loses 1 - beta2 of itself a step, and bf16 holds
three digits. Rounded by chance it is right on average; https://arxiv.org/abs/2010.06192.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn

from lmtrain.optim.adamw_update import start_state, update_rounded
from lmtrain.optim.group_steps import step_groups
from lmtrain.optim.parameter_groups import Group
from lmtrain.optim.state_formats import restore_formats


@final
class RoundedAdamW(torch.optim.Optimizer):
    """AdamW with its moments in `moments_dtype`, None for the weights' own; `adamw` builds it."""

    def __init__(
        self,
        groups: list[Group],
        *,
        betas: tuple[float, float],
        eps: float,
        fused: bool,
        moments_dtype: torch.dtype | None,
    ) -> None:
        # `fused` also makes load_state_dict keep step counts on the device
        super().__init__(groups, {"betas": betas, "eps": eps, "fused": fused, "num_steps": 0})
        self._moments_dtype = moments_dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter with a gradient; return the closure's loss."""
        return step_groups(self, closure, self._step_group)

    def _step_group(self, parameters: list[nn.Parameter], group: Group, noise: torch.Generator | None) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = start_state(parameter, fused=group["fused"], moments_dtype=self._moments_dtype)
        assert noise is not None
        update_rounded(parameters, [self.state[parameter] for parameter in parameters], group, noise=noise)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from saved state, in the formats it was saved in."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group.setdefault("num_steps", 0)  # of a run without rounding so far
        restore_formats(self, state_dict)
