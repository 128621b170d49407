import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.inference.generate import generate
from lmtrain.inference.sampling_settings import Sampling
from lmtrain.models.gpt2 import GPT2


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


def test_prompt_is_kept_and_not_changed(model):
    prompt = torch.randint(53, (1, 4))
    copy = prompt.clone()
    text = generate(model, prompt, num_new_tokens=5)
    assert text.shape == (1, 9)
    assert torch.equal(text[:, :4], copy)
    assert torch.equal(prompt, copy)


def test_same_seed_writes_the_same(model):
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    texts = [generate(model, prompt, num_new_tokens=20, seed=seed).tolist() for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_model_sees_one_shape_only(model):
    shapes = set()
    model.register_forward_pre_hook(lambda module, inputs: shapes.add(inputs[0].shape))
    generate(model, torch.zeros(1, 3, dtype=torch.int64), num_new_tokens=30)
    assert shapes == {(1, 12)}


@pytest.mark.parametrize("was_training", [True, False])
def test_mode_is_given_back_and_no_gradient_is_kept(model, was_training):
    model.train(was_training)
    text = generate(model, torch.zeros(1, 3, dtype=torch.int64), num_new_tokens=2)
    assert model.training is was_training
    assert not text.requires_grad


def test_mode_is_given_back_after_an_error(model):
    model.train()
    with pytest.raises(IndexError):
        generate(model, torch.zeros(1, 3, dtype=torch.int64), num_new_tokens=2, sampling=Sampling(logit_bias={99: 1.0}))
    assert model.training


def test_empty_prompt_is_refused(model):
    with pytest.raises(ConfigurationError, match="no tokens"):
        generate(model, torch.zeros(1, 0, dtype=torch.int64), num_new_tokens=2)
