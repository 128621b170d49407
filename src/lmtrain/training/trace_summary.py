"""A trace in numbers: the shares of its time, the operators and kernels behind them.

Every moment of the traced steps is one of four, the first one true: the device computes; it communicates; it idles
while the host works on the next operator (CPU overhead: dispatch, and Python between operators); it idles (a gap).
"""

from collections import defaultdict
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
    """A kernel, operator or annotation of a trace, from and to a moment in seconds, on one of its threads."""

    name: str
    span: Interval
    is_on_gpu: bool = False
    is_annotation: bool = False
    thread: int = 0


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
            thread=event.start_thread_id(),
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
        operators=_largest(own_seconds(host)),
        kernels=_largest((each.name, each.span[1] - each.span[0]) for each in kernels),
    )


def own_seconds(activities: Iterable[Activity]) -> list[tuple[str, float]]:
    """Return each activity's name and seconds without those that it calls, on its own thread."""
    found: list[tuple[str, float]] = []
    by_thread: defaultdict[int, list[Activity]] = defaultdict(list)
    for each in activities:
        by_thread[each.thread].append(each)
    for thread in by_thread.values():
        outer: list[int] = []  # places in `found` of the open ones
        ends: list[float] = []
        for each in sorted(thread, key=lambda one: (one.span[0], -one.span[1])):
            while ends and ends[-1] <= each.span[0]:
                ends.pop()
                outer.pop()
            seconds = each.span[1] - each.span[0]
            if outer:
                name, own = found[outer[-1]]
                found[outer[-1]] = name, own - seconds
            outer.append(len(found))
            ends.append(each.span[1])
            found.append((each.name, seconds))
    return found


def _is_operator(activity: Activity) -> bool:
    return activity.name.startswith(COMPILED) if activity.is_annotation else not _communicates(activity)


def _communicates(activity: Activity) -> bool:
    return activity.name.startswith(COMMUNICATION) or (activity.is_on_gpu and "nccl" in activity.name.lower())


def _within(intervals: Iterable[Interval], whole: Interval) -> list[Interval]:
    return [(max(start, whole[0]), min(end, whole[1])) for start, end in intervals if start < whole[1]]


def _largest(named: Iterable[tuple[str, float]]) -> tuple[Operation, ...]:
    seconds: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for name, spent in named:
        seconds[name] += spent
        calls[name] += 1
    largest = sorted(seconds, key=lambda name: -seconds[name])[:NUM_OPERATIONS]
    return tuple(Operation(name=name, seconds=seconds[name], calls=calls[name]) for name in largest)
