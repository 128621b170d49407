"""How large checkpoints are, and how often to write one.

Cadence: Young's first-order optimum, sqrt(2 x seconds of a save's stall x mean seconds between failures) (CACM 17(9),
1974). Goodput: Daly's whole intervals between failures at random (Future Generation Computer Systems 22(3), 2006).
"""

import math
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.model.memory import TrainedParameters, state_bytes
from lmtrain.accounting.model.optimizer_state import OptimizerState

# Assumed: a device's state into page-locked memory of its host, PCIe 4 with other traffic beside it.
COPY_BYTES_PER_SECOND: Final = 10e9
# Assumed: a writing process's rate into a shared file system, of each node.
WRITE_BYTES_PER_SECOND: Final = 1e9
# Assumed: from a failure to the next step, with a node to be replaced, imports, a checkpoint to be read, compilation.
RESTART_SECONDS: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """The interval between checkpoints with the least lost time, for a stall and a failure rate, all in seconds.

    It is no shorter than `write_seconds`: one checkpoint is in flight at most. `set_seconds` is the run's own interval,
    None where it has none.
    """

    stall_seconds: float
    write_seconds: float
    seconds_between_failures: float
    restart_seconds: float = RESTART_SECONDS
    set_seconds: float | None = None

    @property
    def every_seconds(self) -> float:
        """Return Young's interval, or the time of a write where that is longer."""
        return max(self.write_seconds, math.sqrt(2 * self.stall_seconds * self.seconds_between_failures))

    @property
    def lost_share(self) -> float:
        """Return the share of the time for saving, and for repeating half an interval after each failure."""
        return self.stall_seconds / self.every_seconds + self.every_seconds / 2 / self.seconds_between_failures

    @property
    def goodput(self) -> float:
        """Return the share of the clock for steps that count, at the run's own interval, or else this one.

        A save by the clock is put off until the one before is written: saves are no closer than `write_seconds`.
        """
        return self.goodput_at(max(self.set_seconds or self.every_seconds, self.write_seconds))

    def goodput_at(self, every_seconds: float) -> float:
        """Return the share of the clock for steps that count, with a save after each `every_seconds` of training.

        Failures come at random at their rate (a Poisson process), in restarts and saves too.
        """
        apart, cycle = self.seconds_between_failures, every_seconds + self.stall_seconds
        num_kept = math.exp(-(self.restart_seconds + cycle) / apart) / -math.expm1(-cycle / apart)  # an attempt's saves
        return num_kept * every_seconds / apart


@dataclass(frozen=True, kw_only=True)
class CheckpointPlan:
    """Bytes of one checkpoint and of all kept ones, and the time of a write.

    `cadence` None where no failure rate is stated.
    """

    checkpoint_bytes: int
    kept_bytes: int
    write_seconds: float
    cadence: Cadence | None = None


def checkpoint_plan(
    parameters: TrainedParameters,
    *,
    precision: PrecisionBytes,
    optimizer: OptimizerState,
    num_kept: int,
    num_devices: int = 1,
    num_parts: int = 1,
    num_workers: int = 1,
    shared_bytes: int = 0,
    num_nodes: int = 1,
    device_hours_per_failure: float | None = None,
    restart_seconds: float | None = None,
    set_seconds: float | None = None,
) -> CheckpointPlan:
    """Count a checkpoint's weights and optimizer state, and set the cadence with the least lost time.

    While one more is written than is kept, disks must hold `num_kept` + 1. A save stalls for the copy of one of
    `num_parts` equal parts of the state to its host, each on a device of its own, neighbours; their nodes write at
    once. Each of `num_workers` writes a whole state, all but the first without the `shared_bytes` of a parameter.
    `set_seconds` is the run's own interval.
    """
    num_copied = parameters.num_total * precision.weights + state_bytes(
        parameters, precision=precision, optimizer=optimizer
    )
    num_bytes = num_copied + (num_workers - 1) * (num_copied - shared_bytes * parameters.num_total)
    num_writing_nodes = math.ceil(num_parts * num_workers * num_nodes / num_devices)
    write_seconds = num_bytes / num_writing_nodes / WRITE_BYTES_PER_SECOND
    cadence = None
    if device_hours_per_failure is not None:
        cadence = Cadence(
            stall_seconds=num_copied / num_parts / COPY_BYTES_PER_SECOND,
            write_seconds=write_seconds,
            seconds_between_failures=device_hours_per_failure * 3600 / num_devices,
            restart_seconds=RESTART_SECONDS if restart_seconds is None else restart_seconds,
            set_seconds=set_seconds,
        )
    return CheckpointPlan(
        checkpoint_bytes=num_bytes,
        kept_bytes=num_bytes * (num_kept + 1),
        write_seconds=write_seconds,
        cadence=cadence,
    )
