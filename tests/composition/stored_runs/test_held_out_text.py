import pytest
import torch

from lmtrain.composition.stored_runs.held_out_text import context_of, score_text
from lmtrain.errors import ConfigurationError
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.models.gpt2 import GPT2
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer


def loaded(*, vocab_size=257, num_tokens=64) -> LoadedModel:
    model = GPT2(
        width=16, num_layers=1, num_heads=2, vocab_size=vocab_size, max_context_tokens=num_tokens, init_std=0.0
    )
    model.initialize_weights(torch.Generator().manual_seed(0))
    return LoadedModel(name="even", model=model, tokenizer=ByteLevelTokenizer())


@pytest.mark.parametrize("vocab_size", [257, 320])  # the second has ids beyond the tokenizer's
@pytest.mark.parametrize(("text", "context_tokens"), [("a", None), ("é" * 70, None), ("some words " * 9, 5)])
def test_a_model_without_an_opinion_needs_the_bits_of_its_vocabulary(vocab_size, text, context_tokens):
    found = score_text(loaded(vocab_size=vocab_size), text, context_tokens=context_tokens, batch_tokens=100)
    assert found.total.num_bytes == len(text.encode())
    bits = torch.tensor(float(vocab_size)).log2().item()
    assert found.total.bits_per_byte == pytest.approx(bits, abs=1e-6)


def test_the_context_is_that_of_the_model_unless_asked_for():
    assert context_of(loaded(num_tokens=64), None) == 64
    assert context_of(loaded(num_tokens=9000), None) == 2048
    assert context_of(loaded(num_tokens=9000), 9000) == 9000
    with pytest.raises(ConfigurationError, match=r"65 is over the model's 64; nearest valid: 64"):
        context_of(loaded(num_tokens=64), 65)
