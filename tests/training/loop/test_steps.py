from types import SimpleNamespace

import pytest

from lmtrain.training.intervals import is_step_end


@pytest.mark.parametrize(("micro_steps", "ends"), [(1, [0, 1, 2, 3, 4, 5]), (2, [1, 3, 5]), (3, [2, 5])])
def test_a_step_ends_with_its_last_micro_batch(micro_steps, ends):
    trainer = SimpleNamespace(accumulate_grad_batches=micro_steps)
    assert [batch_idx for batch_idx in range(6) if is_step_end(trainer, batch_idx)] == ends
