"""How long a step should take before one was measured: its FLOPs over the peak, at a utilization stated or usual."""

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.fleet import ASSUMED_MFU
from lmtrain.accounting.plan import Speed
from lmtrain.accounting.utilization import training_seconds


def expected_speed(cluster: Cluster, peak: Peak | None, batch: BatchPlan, *, flops_per_token: float) -> Speed | None:
    """Return the time of a step at the utilization that the cluster states, or a usual one; None without a peak.

    `flops_per_token` is PaLM's.
    """
    if peak is None:
        return None
    mfu, source = (cluster.mfu, "cluster.mfu") if cluster.mfu else (ASSUMED_MFU, "assumed")
    flops = batch.tokens_per_step * flops_per_token
    seconds = training_seconds(flops, peak_flops=peak.flops, num_devices=batch.num_ranks, utilization=mfu)
    return Speed(step_seconds=seconds, mfu_palm=mfu, source=source)
