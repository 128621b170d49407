"""The words `fleet.TERM=VALUE` of `lmtrain plan`, known without the import of their equations."""

from collections.abc import Iterable
from typing import Final

FLEET: Final = "fleet."
FLEET_TERMS: Final = (
    "num_parameters", "tokens", "tokens_per_parameter", "flops", "num_devices", "hours", "days", "device_hours", "mfu",
    "usd", "usd_per_gpu_hour", "peak_flops", "device",
)  # fmt: skip


def is_fleet(words: Iterable[str]) -> bool:
    """Return whether a command line asks for the equations rather than for the plan of a config."""
    return any(word.startswith(FLEET) for word in words)
