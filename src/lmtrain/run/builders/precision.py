"""A run's precision: settled for its device before any allocation, logged once, and passed to the optimizer."""

from lmtrain.models.base import LanguageModel
from lmtrain.precision.policy import Precision
from lmtrain.run.builders.kernels import device_type
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.float8_head import require_float8_head
from lmtrain.run.validators.rounded_updates import require_rounding
from lmtrain.training.context import RunContext


def build_precision(config: RunConfig) -> Precision:
    """Settle the precision for the device of the run.

    Raises:
        ConfigurationError: The device lacks it, or the optimizer or the loss does not support it.
        EnvironmentProblem: A package is missing.
    """
    require_float8_head(config)
    require_rounding(config)
    return config.precision.build(facts={"device_type": device_type(config.trainer.accelerator)})


def tell_of_precision(precision: Precision, model: LanguageModel, context: RunContext, *, strategy_casts: bool) -> None:
    """Log once the formats, their reason, utilization's divisor, and the effect on this model's layers.

    Raises:
        ConfigurationError: The precision does not suit the model.
    """
    plan = context.plan
    peak = f"peak {plan.peak_flops / 1e12:.4g} TFLOP/s a device" if plan.peak_flops else "peak not known"
    formats = f"precision={precision.describe(strategy_casts=strategy_casts)}; {peak} ({plan.peak_source})"
    lines = [formats, *precision.explain(model)]
    context.events.mark("precision", choice=precision.name, reason=precision.reason, lines="; ".join(lines))
    if context.is_main_process:
        print("\n".join(lines), flush=True)
