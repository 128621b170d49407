import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.inference.sampling import keep_top_k, sample

LOGITS = torch.tensor([[0.0, 3.0, 1.0, -2.0], [5.0, 0.0, 0.0, 0.0]])


def draws(logits, **settings):
    generator = torch.Generator().manual_seed(0)
    return torch.stack([sample(logits, generator=generator, **settings) for _ in range(4000)])


def test_temperature_zero_takes_the_likeliest():
    assert sample(LOGITS, temperature=0.0).tolist() == [1, 0]


def test_top_one_takes_the_likeliest_at_any_temperature():
    assert set(map(tuple, draws(LOGITS, temperature=100.0, top_k=1).tolist())) == {(1, 0)}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_frequencies_follow_the_softmax(temperature):
    frequencies = draws(LOGITS[:1], temperature=temperature).flatten().bincount(minlength=4) / 4000
    expected = (LOGITS[0] / temperature).softmax(dim=-1)
    # Four standard deviations of a frequency from 4,000 draws.
    torch.testing.assert_close(frequencies, expected, atol=4 * 0.5 / 4000**0.5, rtol=0)


def test_top_k_never_draws_the_rest():
    assert set(draws(LOGITS[:1], temperature=100.0, top_k=2).flatten().tolist()) == {1, 2}


def test_top_k_keeps_exactly_k_among_equals():
    kept = keep_top_k(torch.zeros(1, 10), 3)
    assert kept.isfinite().sum().item() == 3


def test_top_k_beyond_the_vocabulary_keeps_all():
    assert torch.equal(keep_top_k(LOGITS, 100), LOGITS)


def test_same_generator_state_draws_the_same():
    assert torch.equal(draws(LOGITS), draws(LOGITS))


@pytest.mark.parametrize(
    ("settings", "message"), [({"temperature": -1.0}, "temperature=-1.0"), ({"top_k": 0}, "top_k=0")]
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        sample(LOGITS, **settings)
