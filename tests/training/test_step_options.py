"""What a step may have beside the plain one: spikes skipped, weights averaged, momentum and decay that move."""

import lightning.pytorch as pl
import pytest
import torch

from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.weight_average import WeightAverage
from tests.training.short_run import LR, train, weights


class BreakGradients(pl.Callback):
    """Makes the gradients of some steps, counted from 1, infinite."""

    def __init__(self, *steps):
        self.steps = steps

    def on_after_backward(self, trainer, pl_module):
        if trainer.global_step + 1 in self.steps:
            gradient = next(pl_module.language_model.parameters()).grad
            assert gradient is not None
            gradient.fill_(float("inf"))


def sgd_with_momentum(model):
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)


@pytest.mark.faults
def test_a_spike_changes_no_weight_and_the_run_goes_on_with_its_schedule_and_data(data_folder, tmp_path):
    settings = {"micro_batch_sequences": 2, "optimizer": sgd_with_momentum}
    before, _ = train(data_folder, tmp_path, steps=2, **settings)
    spikes = SpikeFilter(num_sigmas=6.0, window_steps=8)
    after, batches = train(data_folder, tmp_path, steps=3, spikes=spikes, extra=BreakGradients(3), **settings)
    assert torch.equal(weights(after), weights(before))
    assert [record.was_skipped for record in after.step_metrics.drain()] == [False, False, True]
    guarded, more = train(data_folder, tmp_path, steps=4, spikes=SpikeFilter(num_sigmas=6.0, window_steps=8),
                          extra=BreakGradients(3), **settings)  # fmt: skip
    assert weights(guarded).isfinite().all()
    assert not torch.equal(weights(guarded), weights(before)), "the fourth step was made"
    assert [record.lr for record in guarded.step_metrics.drain()] == pytest.approx([LR, 0.9 * LR, 0.8 * LR, 0.7 * LR])
    assert all(torch.equal(one, other) for one, other in zip(batches, more[: len(batches)], strict=True))


def test_a_filter_that_meets_no_spike_changes_nothing_to_the_last_bit(data_folder, tmp_path):
    plain, _ = train(data_folder, tmp_path, steps=4, optimizer=sgd_with_momentum)
    filtering = SpikeFilter(num_sigmas=100.0, window_steps=4)
    guarded, _ = train(data_folder, tmp_path, steps=4, optimizer=sgd_with_momentum, spikes=filtering)
    assert torch.equal(weights(guarded), weights(plain))
    assert int(filtering.num_skipped) == 0


def test_momentum_and_weight_decay_follow_their_schedules(data_folder, tmp_path):
    module, _ = train(
        data_folder,
        tmp_path,
        steps=3,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=0.5),
        momentum_schedule=lambda step, total_steps, momentum: momentum - 0.1 * step,
        weight_decay_schedule=lambda step, total_steps: 1 - step / total_steps,
    )
    group = module.trainer.optimizers[0].param_groups[0]
    assert (group["momentum"], group["weight_decay"]) == pytest.approx((0.7, 0.4))


def test_the_average_of_the_weights_moves_once_a_step(data_folder, tmp_path):
    average = WeightAverage(decay=0.0)
    module, _ = train(data_folder, tmp_path, steps=2, micro_batch_sequences=1, weight_average=average)
    averages = torch.cat([parameter.flatten() for parameter in average.parameters()])
    assert torch.equal(averages, weights(module)), "decay 0 is the weights themselves"


def count_reads(data_folder, folder, steps, **settings):
    with torch.profiler.profile() as profile:
        train(data_folder, folder, steps=steps, micro_batch_sequences=2, **settings)
    return sum(event.count for event in profile.key_averages() if event.key == "aten::_local_scalar_dense")


def test_filter_average_and_schedules_ask_nothing_of_the_device_from_step_to_step(data_folder, tmp_path):
    """What is read more in six steps than in two, beyond what a plain run reads."""
    counts = {}
    for name in ("plain", "all"):
        for steps in (2, 6):
            parts = {
                "spikes": SpikeFilter(num_sigmas=6.0, window_steps=4),
                "weight_average": WeightAverage(decay=0.9),
                "momentum_schedule": lambda step, total_steps, momentum: momentum,
            }
            settings = {} if name == "plain" else parts
            counts[name, steps] = count_reads(data_folder, tmp_path, steps, optimizer=sgd_with_momentum, **settings)
    assert counts["all", 6] - counts["all", 2] == counts["plain", 6] - counts["plain", 2]
