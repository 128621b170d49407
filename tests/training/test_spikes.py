import statistics

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.training.spikes import SpikeFilter, none


def judge(filtering, loss, norm=1.0):
    return bool(filtering.judge(torch.tensor([loss, norm], dtype=torch.float64)))


def filled(num_steps=8, *, num_sigmas=3.0, window_steps=8):
    filtering = SpikeFilter(num_sigmas=num_sigmas, window_steps=window_steps)
    for step in range(num_steps):
        assert not judge(filtering, 2.0 + 0.1 * (step % 3), 1.0 + 0.1 * (step % 2))
    return filtering


@pytest.mark.parametrize(("loss", "norm"), [(9.0, 1.0), (2.0, 50.0), (9.0, 50.0)])
def test_a_loss_or_a_norm_that_stands_out_is_a_spike(loss, norm):
    assert judge(filled(), loss, norm)


def test_the_limit_is_so_many_standard_deviations_above_the_mean_of_the_window():
    losses = [2.0, 2.1, 2.2, 2.0, 2.1, 2.2, 2.0, 2.1]
    limit = statistics.fmean(losses) + 3.0 * statistics.stdev(losses)
    assert not judge(filled(), limit - 1e-4)
    assert judge(filled(), limit + 1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_a_spike_from_the_first_step_and_not_remembered(value):
    filtering = SpikeFilter(num_sigmas=6.0, window_steps=8)
    assert judge(filtering, value)
    assert judge(filtering, 1.0, value)
    assert int(filtering.num_seen) == 0
    assert int(filtering.num_skipped) == 2
    assert filtering.recent.isfinite().all()


def test_until_half_the_window_is_full_no_finite_step_is_a_spike():
    assert not judge(filled(3), 1e9)
    assert judge(filled(4), 1e9)


def test_a_loss_that_rose_for_good_is_a_spike_no_more_once_the_window_knows_it():
    filtering = filled()
    verdicts = [judge(filtering, 9.0) for _ in range(8)]
    assert verdicts[0]
    assert not verdicts[-1]


def test_a_filter_goes_on_from_its_state():
    one = filled(6)
    other = SpikeFilter(num_sigmas=3.0, window_steps=8)
    other.load_state_dict(one.state_dict())
    for loss in (2.4, 2.0, 9.0, 2.1, 2.2, 30.0):
        assert judge(one, loss) == judge(other, loss)
    assert int(one.num_skipped) == int(other.num_skipped) > 0


def test_nonsense_is_refused():
    with pytest.raises(ConfigurationError, match=r"spikes\.num_sigmas=0 is not above 0"):
        SpikeFilter(num_sigmas=0, window_steps=128)
    with pytest.raises(ConfigurationError, match=r"spikes\.num_sigmas=nan is not above 0"):
        SpikeFilter(num_sigmas=float("nan"), window_steps=128)
    with pytest.raises(ConfigurationError, match=r"spikes\.window_steps=2 is not between 4 and 1,000,000"):
        SpikeFilter(num_sigmas=6, window_steps=2)
    assert none() is None


@pytest.mark.parametrize(("num_steps", "window_steps"), [(11, 4), (11, 16), (3, 4), (0, 4)])
def test_a_window_of_another_length_takes_the_newest_steps(num_steps, window_steps):
    before, after = SpikeFilter(num_sigmas=3, window_steps=8), SpikeFilter(num_sigmas=3, window_steps=window_steps)
    for step in range(num_steps):
        judge(before, float(step))
    after.load_state_dict(before.state_dict())
    newest = [*range(num_steps)][-min(8, window_steps) :]
    assert int(after.num_seen) == len(newest)
    assert after.recent[0, : len(newest)].tolist() == newest
    assert int(after.num_skipped) == int(before.num_skipped)
