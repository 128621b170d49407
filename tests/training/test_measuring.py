"""Peaks, timed steps, host syncs."""

import torch

from lmtrain.training.step_timer import ROUNDS, HostSyncs, StepTimer
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


def counted(body) -> int:
    syncs = HostSyncs()
    syncs.start()
    body()
    return syncs.stop()


def test_asking_for_a_value_counts_and_a_step_of_fused_adamw_does_not():
    value = torch.ones((), requires_grad=True)
    optimizer = torch.optim.AdamW([value], fused=True)

    def step() -> None:
        (value * value).backward()
        optimizer.step()

    assert counted(step) == 0
    assert counted(lambda: (value.item(), float(value.detach()), bool(value > 0))) == 3
