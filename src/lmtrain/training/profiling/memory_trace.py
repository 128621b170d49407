"""Memory by kind over one step: each tensor's allocation and release, sorted by its use in the step.

The kinds are torch's memory profiler's (torch.profiler, export_memory_timeline). Tensors held since before the step
have their kind too where the step used them.
"""

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, final

import torch
from torch.profiler import ProfilerActivity, profile
from typing_extensions import override

from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import write_json
from lmtrain.training.context import RunContext
from lmtrain.training.profiling.profiled_steps import MEMORY_KINDS, ProfiledSteps, profile_file
from lmtrain.training.profiling.traced_steps import TracedSteps

MOST_POINTS: Final = 400
MOST_SNAPSHOT_EVENTS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class MemoryTimeline:
    """Bytes by kind at moments of a step, in seconds from its start; `peak` holds those of the fullest moment."""

    rank: int
    step: int
    device: str
    seconds: tuple[float, ...]
    bytes_of: dict[str, tuple[int, ...]]
    peak: dict[str, int]


@final
class MemoryTrace(TracedSteps):
    """Write profile/memory_rankR.json of the step after `wait_steps` steps of each attempt, on each of `ranks`.

    On a GPU also profile/memory_rankR.pickle, the allocator's snapshot (https://pytorch.org/memory_viz shows it).
    """

    def __init__(
        self, *, wait_steps: int, ranks: Sequence[int] | None = None, num_ranks: int = 1, context: RunContext
    ) -> None:
        steps = ProfiledSteps(
            wait_steps=wait_steps, num_steps=1, ranks=ranks, num_ranks=num_ranks, last_step=context.last_step
        )
        super().__init__(steps, context=context)

    @override
    def make_trace(self, activities: list[ProfilerActivity]) -> profile:
        if ProfilerActivity.CUDA in activities:
            torch.cuda.memory._record_memory_history(max_entries=MOST_SNAPSHOT_EVENTS)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return profile(
            activities=activities,
            profile_memory=True,
            record_shapes=True,
            with_stack=True,  # Python's calls of modules and optimizers tell the kinds
        )

    @override
    def write(self, trace: profile, device: torch.device, *, step: int) -> None:
        path = profile_file(self.context.folder, f"memory_rank{self.context.rank}.json")
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.memory._dump_snapshot(str(path.with_suffix(".pickle")))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        trace.stop()
        timeline = timeline_of(trace, device, rank=self.context.rank, step=step)
        write_json(path, asdict(timeline))

    @override
    def stop(self, trace: profile) -> None:
        if ProfilerActivity.CUDA in trace.activities:
            torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if trace.profiler is not None and trace.profiler.kineto_results is None:  # cut short
            trace.stop()


def timeline_of(trace: profile, device: torch.device, *, rank: int, step: int) -> MemoryTimeline:
    """Return a stopped trace's memory on a device, at most 400 moments: the fullest of each part of the step."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated without a successor that sorts by kind (2.13)
        file = Path(folder) / "timeline.json"
        trace.export_memory_timeline(str(file), device=str(device))  # pyright: ignore[reportDeprecated]
        microseconds, rows = foreign_json.read(file)
    moments = [(max(0, time), [int(value) for value in row[1:]]) for time, row in zip(microseconds, rows, strict=True)]
    return _timeline(moments, device=str(device), rank=rank, step=step)


def _timeline(moments: list[tuple[int, list[int]]], *, device: str, rank: int, step: int) -> MemoryTimeline:
    inside = [moment for moment in moments if moment[0] > 0] or moments  # those before the step have no time
    began = inside[0][0] if inside else 0
    edges = [round(index * len(inside) / MOST_POINTS) for index in range(MOST_POINTS + 1)]
    parts = [inside[start:end] for start, end in pairwise(edges) if end > start]
    kept = [max(part, key=lambda moment: sum(moment[1])) for part in parts]
    fullest = max(kept, key=lambda moment: sum(moment[1]), default=(0, [0] * len(MEMORY_KINDS)))
    return MemoryTimeline(
        rank=rank,
        step=step,
        device=device,
        seconds=tuple((time - began) / 1e6 for time, _ in kept),
        bytes_of={kind: tuple(row[index] for _, row in kept) for index, kind in enumerate(MEMORY_KINDS)},
        peak=dict(zip(MEMORY_KINDS, fullest[1], strict=True)),
    )
