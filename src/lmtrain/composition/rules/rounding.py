"""Whether a run's optimizer rounds its updates at random, told from a config alone: for plans too, without torch."""

from typing import Any, Final

from lmtrain.composition.nodes.source_signatures import setting_names
from lmtrain.errors import ConfigurationError

ROUNDING: Final = "stochastic_rounding"
THAT_ROUND: Final = ("adamw", "muon")  # a test holds this to what the options of conf/optimizer take


def require_rounding(config: dict[str, Any]) -> None:
    """Refuse `precision.stochastic_rounding` with an optimizer that cannot.

    Raises:
        ConfigurationError: It would have no effect.
    """
    target = str(config["optimizer"]["_target_"])
    if config["precision"].get(ROUNDING) and ROUNDING not in setting_names(target):
        known = " and ".join(f"optimizer={name}" for name in THAT_ROUND)
        raise ConfigurationError(
            f"precision.{ROUNDING}=true has no effect with optimizer={target.rpartition('.')[2]}, which rounds to "
            f"nearest; {known} can; nearest valid: false."
        )
