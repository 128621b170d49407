"""Report the Trainer's actions to the run's stopwatch, through Lightning's seam for profilers."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from lightning.pytorch.profilers import Profiler
from typing_extensions import override

from lmtrain.tracking.stopwatch import Kind, Stopwatch

KIND_OF_ACTION: Final[dict[str, Kind]] = {
    "run_training_epoch": "host_overhead",  # the loop itself: all actions not listed below
    "[StepLoop].train_dataloader_next": "data_wait",
    "[_TrainingEpochLoop].train_dataloader_next": "data_wait",  # Lightning's own
    "run_training_batch": "compute",  # forward, backward, optimizer step
}
_NOTHING: Final = nullcontext()


class _Action:
    """The context of one action, lighter than a generator: several open in every step."""

    def __init__(self, profiler: Profiler, name: str) -> None:
        self._profiler, self._name = profiler, name

    def __enter__(self) -> None:
        self._profiler.start(self._name)

    def __exit__(self, *_: object) -> None:
        self._profiler.stop(self._name)


class TimeProfiler(Profiler):
    """Switch the stopwatch at the start and end of each action; callbacks count as logging unless they say otherwise.

    Actions nest, and Lightning ends the inner one first; those of no kind leave the stopwatch as it is. A longer phase
    begun within an action, such as the first step, goes on after it.
    """

    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__()
        self._stopwatch = stopwatch
        self._switched: dict[str, tuple[Kind, Kind]] = {}  # the new kind, the old kind

    @override
    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return a context for an action; the many of no kind share an idle one."""
        return _NOTHING if self._kind_of(action_name) is None else _Action(self, action_name)

    @override
    def start(self, action_name: str) -> None:
        kind = self._kind_of(action_name)
        if kind is not None:
            self._switched[action_name] = (kind, self._stopwatch.switch(kind))

    @override
    def stop(self, action_name: str) -> None:
        kind, before = self._switched.pop(action_name, (None, None))
        if before is not None and self._stopwatch.kind == kind:
            self._stopwatch.switch("host_overhead" if action_name == "run_training_epoch" else before)

    def _kind_of(self, action_name: str) -> Kind | None:
        if action_name in KIND_OF_ACTION:
            return KIND_OF_ACTION[action_name]
        is_logging = self._stopwatch.kind == "host_overhead" and action_name.startswith("[Callback]")
        return "logging" if is_logging else None
