"""Parts of a run unfit for optimizer state in host memory, decided from a config alone."""

from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.source_signatures import gives_nothing

KEY: Final = "optimizer_cpu_offload"


def require_offload(config: RunConfig, *, on_cpu: bool) -> None:
    """Refuse state in host memory on a CPU, where it is already, and with copies of it on the device.

    Raises:
        ConfigurationError: With the nearest valid choice.
    """
    if not config.optimizer_cpu_offload:
        return
    if not gives_nothing(config.spikes.target):
        raise ConfigurationError(
            f"{KEY}=true with {config.spikes.key}, which copy weights and state on the device before each step; "
            f"nearest valid: {config.spikes.key}=none."
        )
    if config.precision.get("stochastic_rounding") or config.optimizer.get("moments"):
        raise ConfigurationError(
            f"{KEY}=true updates some weights at a time, and rounding by chance draws once for all; nearest valid: "
            "precision.stochastic_rounding=false and optimizer.moments=null."
        )
    if on_cpu:
        raise ConfigurationError(f"{KEY}=true has no effect on a CPU: state is in host memory; nearest valid: false.")
