"""A planned step drawn out: its time by computing and messages, its memory by moment, its messages by group."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.model.memory import FORWARD, STEP, DeviceMemory
from lmtrain.accounting.options.strategy import Collective
from lmtrain.accounting.training_plan.speed import Speed
from lmtrain.accounting.training_plan.step_time import StepTime

PHASES: Final = {FORWARD: "forward", STEP: "step"}  # all other moments are of the backward pass
MESSAGES: Final = {"shards": ("gather", "scatter"), "copies": ("reduce", "reduce"), "stages": ("send", "send")}


@dataclass(frozen=True, kw_only=True)
class SimulatedFleet:
    """The planned step of one rank among `batch.num_ranks`; `moments` of its memory, `device_bytes` None: not known."""

    strategy: str
    batch: BatchPlan
    speed: Speed
    time: StepTime
    memory: DeviceMemory
    moments: Sequence[DeviceMemory]
    groups: Sequence[Collective]
    device_bytes: int | None

    @property
    def tokens_per_second_per_device(self) -> float:
        """Return a device's share of the trained tokens."""
        return self.batch.tokens_per_step / self.speed.step_seconds / self.batch.num_ranks

    @property
    def fits(self) -> bool | None:
        """Return whether the fullest moment fits the device; None where its memory is not known."""
        return None if self.device_bytes is None else self.memory.total <= self.device_bytes

    @property
    def phases(self) -> dict[str, DeviceMemory]:
        """Return the fullest moment of each phase."""
        found: dict[str, DeviceMemory] = {}
        for moment in self.moments:
            phase = PHASES.get(moment.moment, "backward")
            if phase not in found or moment.total > found[phase].total:
                found[phase] = moment
        return {phase: found[phase] for phase in ("forward", "backward", "step")}

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of a step by kind and group; `bytes` are those sent by one rank."""
        found: list[dict[str, Any]] = []
        for each in self.groups:
            gathers, reductions = MESSAGES.get(each.group, ("exchange", "exchange"))
            group = {"group": each.group, "num_ranks": each.num_ranks, "stride": each.stride}
            if each.gathered_bytes:
                sizes = {"num_messages": each.num_gathers, "bytes": each.gathered_bytes}
                found.append({"kind": gathers, **group, **sizes})
            if each.reduced_bytes:
                sizes = {"num_messages": each.num_reductions, "bytes": each.reduced_bytes}
                found.append({"kind": reductions, **group, **sizes})
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        peak = self.memory.total
        kinds = {phase: moment.to_json() for phase, moment in self.phases.items()}
        return {
            "strategy": self.strategy,
            "num_ranks": self.batch.num_ranks,
            "tokens_per_step": self.batch.tokens_per_step,
            "step_seconds": self.speed.step_seconds,
            **{name: value for name, value in asdict(self.time).items() if name != "seconds"},
            "exposed_seconds": self.time.exposed_seconds,
            "tokens_per_second_per_device": self.tokens_per_second_per_device,
            "mfu": self.speed.mfu_palm,
            "mfu_palm": self.speed.mfu_palm,
            "peak_bytes": peak,
            "device_bytes": self.device_bytes,
            "fits": self.fits,
            "memory": {"peak_bytes": peak, **kinds},
            "collectives": self.messages,
        }
