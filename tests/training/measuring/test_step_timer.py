from types import SimpleNamespace

from lmtrain.training.step_timer import ROUNDS, HandStep, StepTimer
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
