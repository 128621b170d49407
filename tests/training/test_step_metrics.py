import math

import pytest
import torch

from lmtrain.models.head import LossTotal
from lmtrain.training.step_metrics import StepMetrics, StepRecord


def total(nats, num_tokens, device="cpu"):
    nats = torch.tensor(nats, dtype=torch.float64, device=device, requires_grad=device == "cpu")
    return LossTotal(objective=nats, nats=nats, num_tokens=torch.tensor(num_tokens, device=device))


def finish(metrics, step, *micro_steps):
    for nats, num_tokens in micro_steps:
        metrics.add_micro_step(total(nats, num_tokens))
    metrics.finish_step(step, sums=metrics.reduce_micro_steps(), gradient_norm=torch.tensor(0.5 * step), lr=0.1 * step)


def test_a_loss_is_the_mean_over_tokens_whatever_the_sizes_of_the_micro_batches():
    metrics = StepMetrics()
    finish(metrics, 1, (10.0, 4), (2.0, 1))
    assert metrics.drain() == [StepRecord(step=1, loss=12 / 5, gradient_norm=0.5, lr=0.1)]


def test_tokens_that_carried_loss_are_counted_over_all_steps():
    metrics = StepMetrics()
    assert metrics.trained_tokens == 0
    finish(metrics, 1, (10.0, 4), (2.0, 1))
    finish(metrics, 2, (3.0, 2))
    assert (metrics.first_step_tokens, metrics.trained_tokens) == (5, 7)
    metrics.drain()
    assert (metrics.first_step_tokens, metrics.trained_tokens) == (5, 7)
    finish(metrics, 3, (3.0, 1))
    metrics.drain()
    assert (metrics.first_step_tokens, metrics.trained_tokens) == (5, 8)


def test_sums_are_exact_where_fp32_drops_a_token():
    metrics = StepMetrics()
    metrics.add_micro_step(total(float(2**24), 2**24))
    metrics.add_micro_step(total(1.0, 1))
    assert metrics.reduce_micro_steps()[:2] == (2**24 + 1, 2**24 + 1)


def test_nothing_is_read_from_the_device_before_a_drain():
    """A meta tensor has no value: whoever reads one fails."""
    metrics = StepMetrics()
    metrics.add_micro_step(total(5.0, 2, device="meta"))
    metrics.finish_step(1, sums=metrics.reduce_micro_steps(), gradient_norm=torch.tensor(1.0, device="meta"), lr=0.1)
    assert metrics.last_step is not None
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        metrics.drain()


@pytest.mark.parametrize(
    ("nats", "skip", "is_sound"),
    [(3.0, None, True), (math.nan, None, False), (math.inf, True, True), (3.0, True, True)],
)
def test_weights_are_sound_after_a_finite_step_or_one_that_changed_nothing(nats, skip, is_sound):
    metrics = StepMetrics()
    assert metrics.left_sound_weights is None
    metrics.add_micro_step(total(nats, 1))
    metrics.finish_step(
        1,
        sums=metrics.reduce_micro_steps(),
        gradient_norm=torch.tensor(1.0),
        lr=0.1,
        skip=None if skip is None else torch.tensor(skip),
    )
    assert bool(metrics.left_sound_weights) == is_sound
    assert metrics.drain()[0].was_skipped == bool(skip)
