"""AdamW (https://arxiv.org/abs/1711.05101) with weight decay on matrices only, fused where the device can."""

from collections.abc import Callable
from typing import Any, Literal, final

import torch
from torch import nn

from lmtrain.accounting.model.optimizer_state import BF16_BYTES, alike
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.optim.adamw_update import require_bf16, restore_formats, start_state, step_groups, update_rounded
from lmtrain.optim.fused import choose_fused
from lmtrain.optim.parameter_groups import Group, parameter_groups


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


def adamw(
    model: nn.Module,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
    moments: Literal["bf16"] | None = None,
    fused: bool | None = None,
    stochastic_rounding: bool = False,
) -> torch.optim.Optimizer:
    """Build torch's AdamW over `model`: one group each for matrices, head, embeddings and vectors.

    lr_multipliers: factors of `lr` by group.
    moments: bf16 halves the state, computes in fp32 and rounds by chance; None keeps the weights' format.
    fused: one kernel a step; None where the device has one.
    stochastic_rounding: bf16 weights are computed in fp32 and rounded by chance, and their moments with them.
    """
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    parameters = [parameter for group in groups for parameter in group["params"]]
    fused = choose_fused(parameters, wanted=fused)
    if stochastic_rounding:
        require_bf16(parameters)
    if moments == "bf16" or stochastic_rounding:
        dtype = torch.bfloat16 if moments == "bf16" else None
        return RoundedAdamW(groups, betas=(beta1, beta2), eps=eps, fused=fused, moments_dtype=dtype)
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=0.0, fused=fused)


def adamw_facts(*, moments: Literal["bf16"] | None = None) -> OptimizerFacts:
    """Keep two moments."""
    value_bytes = BF16_BYTES if moments == "bf16" else None
    return OptimizerFacts(
        state=alike(2, value_bytes=value_bytes, vector_bytes=value_bytes),
        update="coordinates",
        usual_rates=(1e-5, 0.01),
    )
