"""Time, utilization and price of FLOPs: t = FLOPs / (devices x dense peak x utilization), and its inverses."""

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError


def model_flops_utilization(
    flops_per_token: float, *, tokens_per_second: float, peak_flops: float, num_devices: int
) -> float:
    """Return `tokens_per_second` of the whole run as a share of the dense peak.

    Raises: ConfigurationError above 1, where the peak or the count of devices must be wrong.
    """
    utilization = flops_per_token * tokens_per_second / (peak_flops * num_devices)
    if utilization > 1:
        raise ConfigurationError(
            f"{utilization:.1%} of a peak of {peak_flops:.4g} FLOP/s each on {format_count(num_devices, 'device')}, "
            "and over 100% is an error in the numbers"
        )
    return utilization


def usd(seconds: float, *, num_devices: int, usd_per_gpu_hour: float) -> float:
    """Return the price of holding `num_devices` for `seconds`."""
    return seconds / 3600 * num_devices * usd_per_gpu_hour
