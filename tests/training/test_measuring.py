"""Timed steps."""

from lmtrain.training.step_timer import ROUNDS, StepTimer
from tests.training.short_run import train


def test_steps_and_their_parts_are_timed_in_turns_and_the_run_stops(data_folder, tmp_path):
    timer = StepTimer(seconds=0.3, sync_steps=2)
    train(data_folder, tmp_path, steps=10_000, extra=timer)
    parts = timer.parts
    assert parts is not None
    assert 1 <= len(timer.step_seconds) <= ROUNDS
    assert timer.num_steps >= len(timer.step_seconds)
    assert min(timer.first_step_seconds, parts.data, parts.forward, parts.backward, parts.optimizer) > 0
    assert timer.syncs_per_step == 0.0
    assert timer.peak_bytes > 10**7
