"""AdamW computed in fp32 and kept in bf16, where torch's own would round small changes away.

A second moment in bf16 that is rounded to nearest never fades: it loses 1 - beta2 of itself a step, and bf16 holds
three digits. Rounded by chance it is right on average; https://arxiv.org/abs/2010.06192.
"""

from collections.abc import Callable
from typing import Any, final

import torch

from lmtrain.optim.adamw_update import Group, start_state, update_rounded
from lmtrain.optim.closure import loss_of
from lmtrain.optim.rounding import noise_of_step
from lmtrain.optim.state_formats import restore_formats


@final
class RoundedAdamW(torch.optim.Optimizer):
    """AdamW whose moments are in `moments_dtype`, None for the weights' own; `adamw` builds it."""

    def __init__(
        self,
        groups: list[Group],
        *,
        betas: tuple[float, float],
        eps: float,
        fused: bool,
        moments_dtype: torch.dtype | None,
    ) -> None:
        # `fused` also tells load_state_dict to keep step counts on the device
        super().__init__(groups, {"betas": betas, "eps": eps, "fused": fused, "num_steps": 0})
        self._moments_dtype = moments_dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient; return what the closure returns."""
        loss = loss_of(closure)
        for number, group in enumerate(self.param_groups):
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter] = start_state(
                        parameter, fused=group["fused"], moments_dtype=self._moments_dtype
                    )
            if parameters:
                noise = noise_of_step(group["num_steps"], group=number, device=parameters[0].device)
                states = [self.state[parameter] for parameter in parameters]
                update_rounded(parameters, states, group, noise=noise)
            group["num_steps"] += 1
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from saved state, in the formats it was saved in."""
        super().load_state_dict(state_dict)
        restore_formats(self, state_dict)
