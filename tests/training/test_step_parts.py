import torch

from lmtrain.training.step_parts import StepTimer, doubled
from lmtrain.training.token_batch import TokenBatch
from tests.training.short_run import train


def test_doubling_a_batch_doubles_what_it_has():
    ids = torch.arange(6).view(2, 3)
    assert torch.equal(doubled(ids), torch.cat([ids, ids]))
    both = doubled(TokenBatch(ids, None, ids > 2))
    assert both.ids.shape == (4, 3)
    assert both.documents is None
    assert both.loss_mask.shape == (4, 3)


def test_the_parts_of_a_run_are_timed_and_the_run_stops(data_folder, tmp_path):
    timer = StepTimer(seconds=0.05, warm_up_steps=2, is_compiled=False)
    train(data_folder, tmp_path, steps=10_000, extra=timer)
    parts = timer.parts
    assert parts is not None
    assert timer.num_steps >= 1
    assert timer.first_step_seconds > 0
    assert min(parts.data, parts.forward, parts.backward, parts.optimizer) > 0
    assert parts.forward + parts.backward < 3 * parts.whole
    assert timer.wider_seconds_per_token is not None
