"""How long a step should take before one was measured: its FLOPs over the peak, at a utilization stated or usual."""

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import Rate
from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.fleets.fleet import ASSUMED_MFU
from lmtrain.accounting.observed.measured import Calibration
from lmtrain.accounting.quantities import format_count
from lmtrain.accounting.training_plan.communication import CommunicationVolume
from lmtrain.accounting.training_plan.plan import Speed
from lmtrain.accounting.training_plan.utilization import training_seconds


def expected_speed(
    cluster: Cluster,
    peak: Peak | None,
    batch: BatchPlan,
    *,
    flops_per_token: float,
    calibration: Calibration | None = None,
    sent: CommunicationVolume | None = None,
    recomputed_flops: float = 0.0,
    bubble_share: float = 0.0,
    offload_seconds: float = 0.0,
) -> Speed | None:
    """Return the time of a step at the cluster's stated utilization, or a usual one; None without a peak.

    `flops_per_token` is PaLM's; `recomputed_flops` are a token's extra ones, for tensors its backward pass
    computes again. A stated utilization is the model's (MFU), the usual one the hardware's (HFU). A `calibration` of
    this very config comes before the usual share. Where nothing is stated a step takes no less than its links do for
    the `sent` bytes, perhaps during all of its computing. `bubble_share` of a step is idle in a pipeline, told beside a
    stated utilization and taken off the usual one. `offload_seconds` of a step move optimizer state from host memory
    and back, where no utilization is stated.
    """
    if peak is None:
        return None
    per_model_flop = 1 + recomputed_flops / flops_per_token
    if calibration is not None and cluster.mfu is None:
        mfu = batch.tokens_per_step * flops_per_token / (peak.flops * batch.num_ranks * calibration.step_seconds)
        source = f"measured over {format_count(calibration.num_steps, 'step')} by lmtrain doctor"
        return Speed(
            step_seconds=calibration.step_seconds,
            mfu_palm=mfu,
            hfu_palm=mfu * per_model_flop,
            source=source,
            setup_seconds=calibration.setup_seconds,
        )
    mfu, source = (cluster.mfu, "cluster.mfu") if cluster.mfu else (ASSUMED_MFU / per_model_flop, "assumed")
    if bubble_share:
        source = f"{source}, a bubble of {bubble_share:.1%} of the step"
        mfu *= 1 if cluster.mfu else 1 - bubble_share
    flops = batch.tokens_per_step * flops_per_token
    seconds = training_seconds(flops, peak_flops=peak.flops, num_devices=batch.num_ranks, utilization=mfu)
    link_seconds = sent.seconds if sent else None
    if link_seconds is not None and link_seconds > seconds:
        if cluster.mfu:
            source = f"cluster.mfu, although the links of this strategy take {link_seconds:.3g} s"
        else:
            mfu, source = mfu * seconds / link_seconds, f"its links take longer than at {mfu:.0%} MFU, assumed"
            seconds = link_seconds
    if offload_seconds and not cluster.mfu:
        mfu *= seconds / (seconds + offload_seconds)
        seconds += offload_seconds
        source = f"{source}, and {offload_seconds:.2g} s for the state's way from host memory and back"
    return Speed(step_seconds=seconds, mfu_palm=mfu, hfu_palm=mfu * per_model_flop, source=source)


def rate_of(cluster: Cluster, speed: Speed | None, *, num_ranks: int) -> Rate:
    """Return the basis of a budget of time: this speed, None if unknown, and the price of all devices."""
    price = cluster.usd_per_gpu_hour
    return Rate(
        seconds_per_step=speed.step_seconds if speed else None,
        setup_seconds=speed.setup_seconds if speed else 0.0,
        usd_per_hour=None if price is None else price * num_ranks,
    )
