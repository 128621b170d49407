"""The smaller parts of a plan: checkpoints, passes over held-out text, written answers, optimizer state in host memory.

Cadence of checkpoints: Young's first-order optimum, sqrt(2 x seconds of a save's stall x mean seconds between failures)
(CACM 17(9), 1974).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.model.memory import TrainedParameters, state_bytes
from lmtrain.accounting.model.optimizer_state import OptimizerState
from lmtrain.accounting.options.parts import HeldOutPasses, ObjectiveFacts
from lmtrain.accounting.training_plan.step_time import LINKS

# Assumed: a device's state into page-locked memory of its host, PCIe 4 with other traffic beside it.
COPY_BYTES_PER_SECOND: Final = 10e9
# Assumed: a writing process's rate into a shared file system, of each node.
WRITE_BYTES_PER_SECOND: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """The interval between checkpoints with the least lost time, for a stall and a failure rate, all in seconds.

    It is at least `write_seconds`: one checkpoint is in flight at most.
    """

    stall_seconds: float
    write_seconds: float
    seconds_between_failures: float

    @property
    def every_seconds(self) -> float:
        """Return Young's interval, or the time of a write where that is longer."""
        return max(self.write_seconds, math.sqrt(2 * self.stall_seconds * self.seconds_between_failures))

    @property
    def lost_share(self) -> float:
        """Return the share of the time for saving, and for repeating half an interval after each failure."""
        return self.stall_seconds / self.every_seconds + self.every_seconds / 2 / self.seconds_between_failures


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
) -> CheckpointPlan:
    """Count a checkpoint's weights and optimizer state, and set the cadence with the least lost time.

    While one more is written than is kept, disks must hold `num_kept` + 1. A save stalls for the copy of one of
    `num_parts` equal parts of the state to its host, each on another device, neighbours; their nodes write at
    once. Each of `num_workers` writes a whole state, all but the first without the `shared_bytes` of a parameter.
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
        )
    return CheckpointPlan(
        checkpoint_bytes=num_bytes,
        kept_bytes=num_bytes * (num_kept + 1),
        write_seconds=write_seconds,
        cadence=cadence,
    )


FORWARD_SHARE: Final = 1 / 3  # of the FLOPs of forward and backward together


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Passes over held-out text before, during and after the training, and the computed tokens of one."""

    num_passes: int
    tokens_per_pass: int

    def passes_by(self, step: int, *, num_steps: int) -> int:
        """Return how many of a run's passes are over after a step, that before the first step with them."""
        return 1 + (self.num_passes - 1) * min(step, num_steps) // max(1, num_steps)

    def passes_left(self, step: int, *, num_steps: int) -> int:
        """Return how many come after a step."""
        return self.num_passes - self.passes_by(step, num_steps=num_steps)

    def seconds(self, *, step_seconds: float, tokens_per_step: int) -> float:
        """Return how long they take at the speed of training."""
        return self.num_passes * self.pass_seconds(step_seconds=step_seconds, tokens_per_step=tokens_per_step)

    def pass_seconds(self, *, step_seconds: float, tokens_per_step: int) -> float:
        """Return how long one takes at the speed of training."""
        return self.tokens_per_pass * FORWARD_SHARE * step_seconds / tokens_per_step


def evaluation_plan(
    passes: HeldOutPasses | None, *, num_steps: int, run_tokens: int, held_out: Sequence[int]
) -> EvaluationPlan | None:
    """Return the passes of a run; None without any, or where no text is known.

    `held_out` counts the tokens of each text in a pass, at most as many as in the whole training.
    """
    if passes is None or not held_out:
        return None
    most = min(run_tokens, passes.max_tokens or run_tokens)
    return EvaluationPlan(
        num_passes=1 + passes.during(num_steps),
        tokens_per_pass=sum(min(most, count) for count in held_out),
    )


@dataclass(frozen=True, kw_only=True)
class GenerationPlan:
    """Tokens written and prompts' tokens read a step on average, at most, and the FLOPs of both on all devices.

    `num_passes` of a device read the weights, of `weight_bytes`, at `memory_bytes_per_second`; None is not known.
    """

    written_tokens: int
    prompt_tokens: int
    flops_per_step: float
    num_passes: float
    weight_bytes: float
    memory_bytes_per_second: float | None = None

    def seconds(self, *, step_seconds: float, tokens_per_step: int) -> float:
        """Return a step's share of it, at the speed of training or of memory, the slower one."""
        computing = (self.written_tokens + self.prompt_tokens) * FORWARD_SHARE * step_seconds / tokens_per_step
        rate = self.memory_bytes_per_second
        return max(computing, self.num_passes * self.weight_bytes / rate if rate else 0.0)


def generation_plan(
    objective: ObjectiveFacts,
    batch: BatchPlan,
    *,
    flops_per_token: float,
    weight_bytes: float,
    memory_bytes_per_second: float | None,
) -> GenerationPlan | None:
    """Return the writing of a step's answers, None where none are written; `flops_per_token` are PaLM's."""
    new = min(objective.num_new_tokens, batch.context_tokens)
    if not new:
        return None
    written = batch.sequences_per_step * new / objective.num_uses
    prompts = batch.sequences_per_step * (batch.context_tokens - new) / objective.copies / objective.num_uses
    return GenerationPlan(
        written_tokens=round(written),
        prompt_tokens=round(prompts),
        flops_per_step=(written + prompts) * flops_per_token * FORWARD_SHARE,
        num_passes=batch.accumulation_micro_steps * new / objective.num_uses,
        weight_bytes=weight_bytes,
        memory_bytes_per_second=memory_bytes_per_second,
    )


@dataclass(frozen=True, kw_only=True)
class TeacherPlan:
    """A frozen model that reads each step's tokens: its FLOPs on all devices, and its weights on each one."""

    flops_per_step: float
    weight_bytes: int


@dataclass(frozen=True, kw_only=True)
class OffloadPlan:
    """A device's optimizer state in host memory, `host_bytes` of it, and the link to there.

    `link_bytes_per_second` of the data sheet are of one direction, None where they are not known.
    """

    host_bytes: int
    link_bytes_per_second: float | None

    @property
    def seconds(self) -> float | None:
        """Return the time of a step for moving it both ways; nothing is computed meanwhile."""
        rate = self.link_bytes_per_second
        return None if rate is None else 2 * self.host_bytes / (rate * LINKS)

    def to_json(self) -> dict[str, Any]:
        """Return bytes, rate and seconds."""
        return asdict(self) | {"seconds_per_step": self.seconds}
