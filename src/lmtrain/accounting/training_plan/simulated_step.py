"""A simulated step in numbers: memory by kind, messages by group, time; and many alike blocks from a few."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.training_plan.step_events import Event, MessageCount, Phase, count_messages
from lmtrain.accounting.training_plan.step_time import Rates, StepTime, step_time

Peaks = Mapping[Any, Mapping[str, float]]  # by phase, or by phase and moment before the line is taken


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Figures of a model with some blocks; each block more adds the same to every one of them.

    `peaks` are bytes by kind at the fullest moment of each phase.
    """

    time: StepTime
    peaks: Peaks
    messages: Sequence[MessageCount]
    flops: float

    @property
    def peak_bytes(self) -> float:
        """Return the most bytes at once."""
        return max(sum(kinds.values()) for kinds in self.peaks.values())


@dataclass(frozen=True, kw_only=True)
class SimulatedFleet:
    """A simulated step of one rank among `batch.num_ranks`.

    `flops_per_token` are the model's by PaLM's count, `peak_flops` a device's for its products; `device_bytes` None
    where its memory is not known.
    """

    strategy: str
    batch: BatchPlan
    figures: StepFigures
    flops_per_token: float
    peak_flops: float
    device_bytes: int | None

    @property
    def tokens_per_second_per_device(self) -> float:
        """Return a device's share of the trained tokens."""
        return self.batch.tokens_per_step / self.figures.time.seconds / self.batch.num_ranks

    @property
    def mfu(self) -> float:
        """Return the model's FLOPs as a share of the dense peak."""
        return self.flops_per_token * self.tokens_per_second_per_device / self.peak_flops

    @property
    def fits(self) -> bool | None:
        """Tell whether the fullest moment fits the device; None where its memory is not known."""
        return None if self.device_bytes is None else self.figures.peak_bytes <= self.device_bytes

    def efficiency(self, base: "SimulatedFleet") -> float:
        """Return the share of a smaller fleet's tokens a second and device."""
        return self.tokens_per_second_per_device / base.tokens_per_second_per_device

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        time = self.figures.time
        return {
            "strategy": self.strategy,
            "num_ranks": self.batch.num_ranks,
            "tokens_per_step": self.batch.tokens_per_step,
            "step_seconds": time.seconds,
            "compute_seconds": time.compute_seconds,
            "message_seconds": time.message_seconds,
            "exposed_seconds": time.exposed_seconds,
            "tokens_per_second_per_device": self.tokens_per_second_per_device,
            "mfu_palm": self.mfu,
            "peak_bytes": self.figures.peak_bytes,
            "device_bytes": self.device_bytes,
            "fits": self.fits,
            "memory": {phase: dict(kinds) for phase, kinds in self.figures.peaks.items()},
            "messages": [asdict(each) for each in self.figures.messages],
        }


def figures_of(events: Sequence[Event], peaks: Peaks, *, flops: float, rates: Rates) -> StepFigures:
    """Return the figures of recorded events."""
    return StepFigures(time=step_time(events, rates), peaks=peaks, messages=count_messages(events), flops=flops)


def by_phase(figures: StepFigures) -> StepFigures:
    """Return figures with moments (phase, number) put together: the fullest of each phase."""
    moments = sorted(figures.peaks.items(), key=lambda moment: sum(moment[1].values()))
    phases: dict[Phase, Mapping[str, float]] = {moment[0]: kinds for moment, kinds in moments}
    order: tuple[Phase, ...] = ("forward", "backward", "step")
    return replace(figures, peaks={phase: phases[phase] for phase in order if phase in phases})


def along_line(few: StepFigures, more: StepFigures, *, blocks: tuple[int, int], num_blocks: int) -> StepFigures:
    """Return the figures of a model of `num_blocks` alike blocks, from those of two numbers of `blocks`.

    No peak falls with more blocks: where it does from the first number to the second, work began to go in buckets.
    """
    first, second = blocks
    share = (num_blocks - first) / (second - first)

    def at(one: float, two: float) -> float:
        return one + share * (two - one)

    return StepFigures(
        time=StepTime(**{key: at(one, getattr(more.time, key)) for key, one in asdict(few.time).items()}),
        peaks={
            phase: {kind: max(two := more.peaks[phase][kind], at(size, two)) for kind, size in kinds.items()}
            for phase, kinds in few.peaks.items()
            if phase in more.peaks
        },
        messages=[
            MessageCount(
                kind=one.kind,
                num_ranks=one.num_ranks,
                stride=one.stride,
                num_messages=at(one.num_messages, two.num_messages),
                num_bytes=at(one.num_bytes, two.num_bytes),
                sent_bytes=at(one.sent_bytes, two.sent_bytes),
            )
            for one, two in zip(few.messages, more.messages, strict=True)
        ],
        flops=at(few.flops, more.flops),
    )
