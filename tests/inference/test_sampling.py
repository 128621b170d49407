import random
from collections import Counter

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lmtrain.errors import ConfigurationError
from lmtrain.inference.sampling import Sampling, choose, generate, likeliest
from lmtrain.models.gpt2 import GPT2

LOGITS = torch.tensor([0.0, 3.0, 1.0, -2.0])
GREEDY = {"temperature": 0.0}


def draws(logits, *, num=4000, prompt=(), new=(), **settings):
    source, sampling = random.Random(0), Sampling(**settings)
    return [choose(logits, sampling, prompt=prompt, new=new, draw=source.random()) for _ in range(num)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_frequencies_follow_the_softmax(temperature):
    counts = Counter(draws(LOGITS, temperature=temperature))
    expected = (LOGITS / temperature).softmax(dim=-1).tolist()
    # Four standard deviations of a frequency from 4,000 draws.
    assert [counts[token] / 4000 for token in range(4)] == pytest.approx(expected, abs=4 * 0.5 / 4000**0.5)


@pytest.mark.parametrize("settings", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.8}])
@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_the_same_tokens_are_kept_as_by_transformers(settings, temperature):
    logits = torch.randn(30, generator=torch.Generator().manual_seed(3))
    made = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}
    scores = TemperatureLogitsWarper(temperature)(None, logits[None])
    for name, value in settings.items():
        scores = made[name](value)(None, scores)
    kept = set(scores[0].isfinite().nonzero().flatten().tolist())
    grid = [place / 4000 for place in range(4000)]  # as fine as the least likely token that is kept
    sampling = Sampling(temperature=temperature, **settings)
    assert {choose(logits, sampling, prompt=(), new=(), draw=draw) for draw in grid} == kept


@pytest.mark.parametrize("shift", [0.0, -6.0])  # scores of both signs, and negative ones alone
def test_repetition_is_penalised_as_by_transformers(shift):
    logits = torch.randn(30, generator=torch.Generator().manual_seed(4)) + shift
    text = [3, 7, int(logits.argmax()), int(logits.argmin())]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([text]), logits[None].clone())[0].argmax()
    assert draws(logits, num=1, prompt=text[:2], new=text[2:], repetition_penalty=1.7, **GREEDY) == [int(expected)]


def test_presence_counts_once_and_frequency_each_time():
    assert draws(LOGITS, num=1, new=[1, 1], presence_penalty=1.9, **GREEDY) == [1]
    assert draws(LOGITS, num=1, new=[1, 1], presence_penalty=2.1, **GREEDY) == [2]
    assert draws(LOGITS, num=1, new=[1, 1], frequency_penalty=0.9, **GREEDY) == [1]
    assert draws(LOGITS, num=1, new=[1, 1], frequency_penalty=1.1, **GREEDY) == [2]
    assert draws(LOGITS, num=1, prompt=[1, 1], frequency_penalty=1.1, **GREEDY) == [1]  # the prompt is not written here


def test_a_bias_forces_and_forbids():
    assert draws(LOGITS, num=1, logit_bias={3: 100.0}, **GREEDY) == [3]
    assert 1 not in draws(LOGITS, num=300, logit_bias={1: -100.0})


def test_log_probabilities_are_nats_before_any_setting():
    score, near = likeliest(LOGITS, 2, num=2)
    expected = LOGITS.log_softmax(dim=-1)
    assert score == pytest.approx(float(expected[2]))
    assert [token for token, _ in near] == [1, 2]
    assert likeliest(LOGITS, 2, num=0)[1] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_k", 0),
        ("top_p", 0.0),
        ("repetition_penalty", 1e-46),
        ("presence_penalty", float("inf")),
        ("logit_bias", {3: float("nan")}),
    ],
)
def test_impossible_settings_are_refused(key, value):
    with pytest.raises(ConfigurationError, match=key):
        Sampling(**{key: value})


@pytest.fixture
def model():
    model = GPT2(width=32, num_layers=2, num_heads=2, vocab_size=53, max_context_tokens=12, init_std=0.3)
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


def naive_greedy(model, tokens, num_new_tokens):
    for _ in range(num_new_tokens):
        logits = model(tokens[:, -model.max_context_tokens :])[:, -1]
        tokens = torch.cat((tokens, logits.argmax(dim=-1, keepdim=True)), dim=1)
    return tokens


@pytest.mark.parametrize("num_prompt_tokens", [1, 5, 12, 20])
@pytest.mark.parametrize("num_new_tokens", [1, 6, 20])
def test_greedy_continuation_equals_the_naive_loop(model, num_prompt_tokens, num_new_tokens):
    prompt = torch.randint(53, (2, num_prompt_tokens), generator=torch.Generator().manual_seed(1))
    expected = naive_greedy(model, prompt, num_new_tokens)
    assert torch.equal(
        generate(model, prompt, num_new_tokens=num_new_tokens, sampling=Sampling(temperature=0.0)), expected
    )


def test_same_seed_writes_the_same_and_the_mode_is_given_back(model):
    model.train()
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    texts = [generate(model, prompt, num_new_tokens=20, seed=seed).tolist() for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert model.training
