import time
from types import SimpleNamespace

import torch

from lmtrain.training.step_timer import ROUNDS, HandStep, StepTimer, forget_peak, peak_bytes
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


class Slow(StepTimer):
    """A run whose steps take longer than all that it may."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        time.sleep(0.05)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self.last_step = trainer.global_step


def test_a_step_that_is_long_makes_one_of_each(data_folder, tmp_path):
    timer = Slow(seconds=0.02, sync_steps=10)
    train(data_folder, tmp_path, steps=10_000, extra=timer)
    assert (len(timer.step_seconds), timer.num_steps) == (1, 1)
    assert timer.last_step == 4, "the first, one to warm up, one round, one whose syncs are counted"


def test_syncs_are_not_counted_where_nobody_asks(data_folder, tmp_path):
    timer = StepTimer(seconds=0.02, sync_steps=0)
    train(data_folder, tmp_path, steps=10_000, extra=timer)
    assert timer.syncs_per_step is None
    assert timer.parts is not None


def test_the_peak_of_memory_begins_anew():
    cpu = torch.device("cpu")
    torch.ones(50_000_000).sum()  # 200 MB, given back
    high = peak_bytes(cpu)
    forget_peak(cpu)
    assert peak_bytes(cpu) < high - 100_000_000


def test_steps_that_learn_from_the_same_answers_are_timed_together_and_the_run_keeps_its_own(monkeypatch):
    begun, loaded, seconds = [], [], iter([5.0, 1.0])
    objective = SimpleNamespace(
        num_iterations=2, state=lambda: {"written": "own"}, begin=lambda **at: begun.append(at), load=loaded.append
    )
    hand = HandStep(None, SimpleNamespace(objective=objective))
    monkeypatch.setattr(hand, "_parts", lambda: {"forward": next(seconds)})
    assert hand.measure() == {"forward": 3.0}, "one of the two writes"
    assert begun == [{"step": step, "micro_step": 0, "seed": step} for step in (0, 1)]
    assert loaded == [{"written": "own"}]
