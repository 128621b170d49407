"""What the depth dial says about training the model of a plan; nothing for models without a dial."""

from typing import Any

from lmtrain.accounting.depth_scaling import DepthScaling, depth_scaling
from lmtrain.accounting.plan import Plan

MODEL_WITH_A_DIAL = "lmtrain.models.nano.nano"


def dial_rules(config: dict[str, Any], plan: Plan) -> DepthScaling | None:
    """Return batch, learning-rate and decay rules for the run's tokens, None for another model."""
    if config["model"]["_target_"] != MODEL_WITH_A_DIAL:
        return None
    layer = plan.shape.attention[0]
    return depth_scaling(
        plan.shape.num_matmul_parameters,
        width=layer.num_heads * layer.head_width,
        tokens_per_parameter=plan.horizon.tokens / plan.shape.num_matmul_parameters,
    )
