"""The compute capability of a run's device, and the refusal of precisions beyond it."""

import torch

from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.errors import ConfigurationError, EnvironmentProblem


def capability_here() -> tuple[int, int]:
    """Return the compute capability of this rank's GPU."""
    return torch.cuda.get_device_capability()


def require_products(facts: PrecisionFacts, device_type: str) -> PrecisionFacts:
    """Return the facts of a precision with products on this device.

    Raises:
        ConfigurationError: No device of this kind has them.
        EnvironmentProblem: This one is too old for them.
    """
    if facts.gpu_since is None:
        return facts
    if device_type != "cuda":
        raise ConfigurationError(facts.refusal(f"this run is on {device_type}"))
    found = capability_here()
    if found < facts.gpu_since:
        raise EnvironmentProblem(facts.refusal(f"this one has {found[0]}.{found[1]}"))
    return facts
