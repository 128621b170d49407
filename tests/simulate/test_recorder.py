"""The record of operations: phases, waits, memory by kind, and graphs in the place of their operations."""

import torch

from lmtrain.accounting.training_plan.simulated_step import Kernel
from lmtrain.simulate.recorder import Recorder


def test_operations_are_booked_to_their_phase_with_the_fullest_moment_of_each() -> None:
    weight = torch.zeros(100)
    recorder = Recorder()
    recorder.hold([weight], "weights")
    with recorder:
        kept = weight + 1
        with recorder.during("backward"):
            assert (weight * 2).sum() == 0
            recorder.hold([kept], "gradients")
    record = recorder.taken()
    assert {event.phase for event in record.events if isinstance(event, Kernel)} == {"forward", "backward"}
    assert (record.peaks["forward"]["weights"], record.peaks["forward"]["activations"]) == (400, 400)
    assert record.peaks["backward"]["workspace"] >= 400
    assert recorder.taken().events == []
    assert recorder.memory.now()["gradients"] == 400
