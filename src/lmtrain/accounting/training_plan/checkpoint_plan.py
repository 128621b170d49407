"""How large checkpoints are, and how often to write one.

Cadence: Young's first-order optimum, sqrt(2 x seconds to write x mean seconds between failures) (CACM 17(9), 1974).
"""

import math
from dataclasses import dataclass

from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.model.memory import TrainedParameters, state_bytes
from lmtrain.accounting.model.optimizer_state import OptimizerState


@dataclass(frozen=True, kw_only=True)
class CheckpointPlan:
    """Bytes of one checkpoint and of all kept ones; `every_seconds` None where no failure rate is stated."""

    checkpoint_bytes: int
    kept_bytes: int
    every_seconds: float | None


def checkpoint_plan(
    parameters: TrainedParameters,
    *,
    precision: PrecisionBytes,
    optimizer: OptimizerState,
    num_kept: int,
    stall_seconds: float | None = None,
    seconds_between_failures: float | None = None,
) -> CheckpointPlan:
    """Count a checkpoint's weights and optimizer state, and set the cadence with the least lost time.

    While one more is written than is kept, disks must hold `num_kept` + 1.
    """
    num_bytes = parameters.num_total * precision.weights + state_bytes(
        parameters, precision=precision, optimizer=optimizer
    )
    every = None
    if stall_seconds is not None and seconds_between_failures is not None:
        every = math.sqrt(2 * stall_seconds * seconds_between_failures)
    return CheckpointPlan(checkpoint_bytes=num_bytes, kept_bytes=num_bytes * (num_kept + 1), every_seconds=every)
