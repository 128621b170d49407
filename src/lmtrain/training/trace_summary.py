"""A trace in numbers: the shares of its time, the operators and kernels behind them.

Every moment of the traced steps is one of four, the first one true: the device computes; it communicates; it idles
while the host works on the next operator (CPU overhead: dispatch, and Python between operators); it idles (a gap).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from torch.profiler import profile


FOLDER: Final = "profile"  # of a run
# In the order of torch's columns (2.13), the first of which is always empty.
MEMORY_KINDS: Final[tuple[str, ...]] = (
    "parameters",
    "optimizer state",
    "inputs",
    "temporaries",
    "activations",
    "gradients",
    "autograd's own",
    "others",
)
STEP: Final = "ProfilerStep#"
COMPILED: Final = "## Call CompiledFxGraph"  # an annotation around generated code, whose kernels are not recorded
COMMUNICATION: Final = ("gloo:", "nccl:", "c10d::")
PYTHON_SECONDS: Final = 1e-3  # between two operators: more is a gap
NUM_OPERATIONS: Final = 12


Interval = tuple[float, float]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """A kernel, operator or annotation of a trace, from and to a moment in seconds."""

    name: str
    span: Interval
    is_on_gpu: bool = False
    is_annotation: bool = False


def activities_of(trace: "profile") -> list[Activity]:
    """Return a stopped trace's activities, without torch's own tree: it took 4.6 s for 85,000, this 0.2 (2.13)."""
    from torch.autograd import DeviceType  # pages of profiles need no torch

    assert trace.profiler is not None
    assert trace.profiler.kineto_results is not None
    return [
        Activity(
            name=event.name(),
            span=(event.start_ns() / 1e9, event.end_ns() / 1e9),
            is_on_gpu=event.device_type() == DeviceType.CUDA,
            is_annotation=event.is_user_annotation(),
        )
        for event in trace.profiler.kineto_results.events()
    ]


def exposed(waits: Iterable[Interval], computes: Iterable[Interval]) -> float:
    """Return how long the union of `waits` is where none of `computes` overlaps it."""
    computing = merged(computes)
    return length(merged([*waits, *computing])) - length(computing)


def merged(intervals: Iterable[Interval], *, bridging: float = 0.0) -> list[Interval]:
    """Join overlapping intervals, in order, and those at most `bridging` apart."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1] + bridging:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def length(intervals: Iterable[Interval]) -> float:
    """Add up disjoint intervals."""
    return sum(end - start for start, end in intervals)


@final
@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operator's or kernel's own time in all traced steps, in seconds, and its calls."""

    name: str
    seconds: float
    calls: int


@final
@dataclass(frozen=True, kw_only=True)
class TraceSummary:
    """A rank's traced steps; seconds are of the clock, `kernels` empty without a GPU, `operators` the host's own."""

    rank: int
    last_step: int
    num_steps: int
    seconds: float
    computing: float
    communication: float
    cpu_overhead: float
    idle: float
    operators: tuple[Operation, ...] = ()
    kernels: tuple[Operation, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "TraceSummary":
        """Read `to_json`'s values."""
        lists: dict[str, Any] = {
            "operators": tuple(Operation(**each) for each in row["operators"]),
            "kernels": tuple(Operation(**each) for each in row["kernels"]),
        }
        return cls(**{name: value for name, value in row.items() if name != "gaps"} | lists)  # of 0.1.0


def summarize(activities: Sequence[Activity], *, rank: int, last_step: int, num_steps: int) -> TraceSummary:
    """Divide the time of the traced steps; without their annotations, from the first activity to the last."""
    steps = [each.span for each in activities if each.name.startswith(STEP) and not each.is_on_gpu]
    spans = steps or [each.span for each in activities] or [(0.0, 0.0)]
    whole = min(start for start, _ in spans), max(end for _, end in spans)
    inside = [each for each in activities if whole[0] <= each.span[0] and each.span[1] <= whole[1]]
    host = [each for each in inside if not each.is_on_gpu and _is_operator(each)]
    kernels = [each for each in inside if each.is_on_gpu and not each.is_annotation]
    device = kernels or host
    computing = merged(each.span for each in device if not _communicates(each))
    waits = [each.span for each in inside if _communicates(each) and (each.is_on_gpu or not kernels)]
    busy = merged([*computing, *waits])
    working = merged((each.span for each in host), bridging=PYTHON_SECONDS)
    overhead = exposed(_within(working, whole), busy)
    return TraceSummary(
        rank=rank,
        last_step=last_step,
        num_steps=num_steps,
        seconds=whole[1] - whole[0],
        computing=length(computing),
        communication=exposed(waits, computing),
        cpu_overhead=overhead,
        idle=max(0.0, whole[1] - whole[0] - length(busy) - overhead),
    )


def _is_operator(activity: Activity) -> bool:
    return activity.name.startswith(COMPILED) if activity.is_annotation else not _communicates(activity)


def _communicates(activity: Activity) -> bool:
    return activity.name.startswith(COMMUNICATION) or (activity.is_on_gpu and "nccl" in activity.name.lower())


def _within(intervals: Iterable[Interval], whole: Interval) -> list[Interval]:
    return [(max(start, whole[0]), min(end, whole[1])) for start, end in intervals if start < whole[1]]


def operations_of(trace: "profile") -> dict[str, list[dict[str, Any]]]:
    """Return a stopped trace's operators and kernels of the most own time, as a summary has them."""
    from torch.autograd import DeviceType  # pages of profiles need no torch

    found: dict[str, list[Operation]] = {"operators": [], "kernels": []}
    for each in trace.key_averages():
        on_gpu = each.device_type == DeviceType.CUDA
        if each.is_user_annotation and (on_gpu or not each.key.startswith(COMPILED)):
            continue
        microseconds = each.self_device_time_total if on_gpu else each.self_cpu_time_total
        operation = Operation(name=each.key, seconds=microseconds / 1e6, calls=each.count)
        found["kernels" if on_gpu else "operators"].append(operation)
    largest = {name: sorted(some, key=lambda one: -one.seconds)[:NUM_OPERATIONS] for name, some in found.items()}
    return {name: [asdict(one) for one in some] for name, some in largest.items()}
