"""The number formats of products on a run's device, and the refusal of others."""

import torch

from lmtrain.errors import ConfigurationError

TF32_SINCE = (8, 0)  # compute capability
FP8_SINCE = (8, 9)
ROWWISE_FP8_SINCE = (9, 0)


def capability_here() -> tuple[int, int]:
    """Return the compute capability of this rank's GPU."""
    return torch.cuda.get_device_capability()


def require_tf32(device_type: str) -> None:
    """Refuse a device without TF32.

    Raises: ConfigurationError.
    """
    _require(device_type, since=TF32_SINCE, precision="tf32", nearest="precision=fp32")


def require_fp8(device_type: str, *, recipe: str) -> None:
    """Refuse a device without products in fp8, or without those with a scale a row.

    Raises: ConfigurationError.
    """
    _require(device_type, since=FP8_SINCE, precision="fp8", nearest="precision=bf16_mixed")
    if recipe == "rowwise":
        nearest = "precision.recipe=tensorwise"
        _require(device_type, since=ROWWISE_FP8_SINCE, precision="fp8 with precision.recipe=rowwise", nearest=nearest)


def _require(device_type: str, *, since: tuple[int, int], precision: str, nearest: str) -> None:
    major, minor = since
    needs = f"precision={precision} needs a GPU of compute capability {major}.{minor} or later"
    if device_type != "cuda":
        raise ConfigurationError(f"{needs}, and this run is on {device_type}; nearest valid: {nearest}.")
    found = capability_here()
    if found < since:
        raise ConfigurationError(f"{needs}, and this one has {found[0]}.{found[1]}; nearest valid: {nearest}.")
