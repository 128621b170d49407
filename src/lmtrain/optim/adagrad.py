"""AdaGrad (https://jmlr.org/papers/v12/duchi11a.html), torch's own: steps shrink with the sum of squared gradients."""

import torch
from torch import nn

from lmtrain.accounting.model.optimizer_state import alike
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.optim.parameter_groups import parameter_groups
from lmtrain.optim.sharded import local


def adagrad(
    model: nn.Module,
    *,
    lr: float,
    eps: float = 1e-10,
    initial_accumulator: float = 0.0,
    weight_decay: float = 0.0,
    decay_embeddings: bool = False,
    lr_multipliers: dict[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build AdaGrad over `model`.

    initial_accumulator: the initial sum of squares; above 0 it calms the first steps.
    weight_decay: added to the gradient, and so divided like it.
    """
    groups = parameter_groups(
        model, lr=lr, weight_decay=weight_decay, decay_embeddings=decay_embeddings, lr_multipliers=lr_multipliers
    )
    # Step counts are on the host, next to the weights of a CPU, where only the fused step does not read them; it takes
    # 0.4 of the other's time there. Not every torch since 2.11 has it for GPUs, and none for sharded parameters.
    parameters = [parameter for group in groups for parameter in group["params"]]
    fused = all(parameter.device.type == "cpu" and local(parameter) is parameter for parameter in parameters)
    return torch.optim.Adagrad(groups, lr=lr, eps=eps, initial_accumulator_value=initial_accumulator, fused=fused)


def adagrad_facts() -> OptimizerFacts:
    """Keep the sum of squared gradients."""
    return OptimizerFacts(
        state=alike(1),
        decay="gradient",
        update="coordinates",
        ranges={"initial_accumulator": {"at_least": 0.0, "usual": "0"}},
    )
