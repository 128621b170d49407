"""How long a step of a config should take, with what its backward pass computes again."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.model.flops import block_forward_flops, flops_per_token, seen_tokens
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.training_plan.communication import CommunicationVolume
from lmtrain.accounting.training_plan.expected_speed import expected_speed
from lmtrain.accounting.training_plan.plan import Speed
from lmtrain.composition.nodes.facts import share_recomputed
from lmtrain.composition.planning.calibration import calibration_of


def step_speed(
    config: dict[str, Any],
    shape: ModelShape,
    *,
    batch: BatchPlan,
    cluster: Cluster,
    peak: Peak | None,
    sent: CommunicationVolume,
    num_block_parameters: int,
    documents: Mapping[int, float] | None,
    allowed: Sequence[str] | None = None,
) -> Speed | None:
    """Return the expected speed; `num_block_parameters` are in matrices of the blocks and met by one token.

    `allowed` are packages that may be loaded beside our own; None where the config was checked before.
    """
    seen = seen_tokens(batch.context_tokens, documents=documents)
    recompute = config["recompute"]
    again = share_recomputed(recompute, allowed=[recompute["_target_"]] if allowed is None else allowed)
    return expected_speed(
        cluster,
        peak,
        batch,
        flops_per_token=flops_per_token(shape, batch.context_tokens, documents=documents).palm,
        calibration=calibration_of(config, batch),
        sent=sent,
        recomputed_flops=again * block_forward_flops(shape, num_block_parameters=num_block_parameters, seen=seen),
    )
