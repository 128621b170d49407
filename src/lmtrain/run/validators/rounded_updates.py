"""Whether a run's optimizer rounds its updates at random, decided from a config alone: for plans too, without torch."""

from typing import Final

from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.errors import ConfigurationError
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import options_saying
from lmtrain.run.schema.source_signatures import setting_names

ROUNDING: Final = "stochastic_rounding"
OPTIMIZERS: Final = "lmtrain.optim"


def require_rounding(config: RunConfig) -> None:
    """Refuse `precision.stochastic_rounding` with an optimizer incapable of it.

    Raises:
        ConfigurationError: It would have no effect.
    """
    if config.precision.get(ROUNDING) and ROUNDING not in setting_names(config.optimizer.target):
        known = " and ".join(
            f"optimizer={target.rpartition('.')[2]}"
            for target, _ in options_saying(OPTIMIZERS, OptimizerFacts)
            if ROUNDING in setting_names(target)
        )
        raise ConfigurationError(
            f"precision.{ROUNDING}=true has no effect with optimizer={config.optimizer.word}, which rounds to "
            f"nearest; {known} can; nearest valid: false."
        )
