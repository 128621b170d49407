"""A run's precision: settled for its device before anything is allocated, told once, and handed to the optimizer."""

from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.composition.nodes.facts import options_saying
from lmtrain.composition.nodes.source_signatures import setting_names
from lmtrain.composition.parts.kernels import device_type
from lmtrain.composition.rules.float8_head import require_float8_head
from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.precision.policy import Precision
from lmtrain.training.context import RunContext

ROUNDING = "stochastic_rounding"


def build_precision(config: RunConfig) -> Precision:
    """Settle the precision for the device of the run.

    Raises:
        ConfigurationError: The device has not got it, or the optimizer or the loss cannot do what it asks for.
        EnvironmentProblem: A package is missing.
    """
    require_float8_head(config)
    facts = {"device_type": device_type(config.trainer.accelerator)}
    precision: Precision = config.precision.build(facts=facts)
    if precision.stochastic_rounding and ROUNDING not in setting_names(config.optimizer.target):
        known = " and ".join(
            f"optimizer={target.rpartition('.')[2]}"
            for target, _ in options_saying("lmtrain.optim", OptimizerFacts)
            if ROUNDING in setting_names(target)
        )
        raise ConfigurationError(
            f"precision.{ROUNDING}=true has no effect with optimizer={config.optimizer.word}, which rounds to "
            f"nearest; {known} can; nearest valid: false."
        )
    return precision


def tell_of_precision(precision: Precision, model: LanguageModel, context: RunContext, *, strategy_casts: bool) -> None:
    """Say once which formats are used, why, what utilization divides by, and what that means for this model's layers.

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
