"""Packed layers multiply as their own weights do; the packing itself is forced, on any processor with oneDNN."""

import pytest
import torch

from lmtrain.inference import packed_linear
from lmtrain.inference.packed_linear import FEWEST_TOKENS, PackedLinear, pack_linears
from lmtrain.precision import cpu_products
from tests.inference.cached import build, engine, greedy, prompts, uncached, write

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")


@pytest.fixture(autouse=True)
def faster(monkeypatch):
    monkeypatch.setattr(packed_linear, "is_mkl_slow", lambda: True)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_packed_products_are_those_of_the_weights(family):
    model, packed = build(family), build(family)
    pack_linears(packed)
    assert any(isinstance(module, PackedLinear) for module in packed.modules())
    assert packed.state_dict().keys() == model.state_dict().keys()
    for num_tokens in (FEWEST_TOKENS - 1, FEWEST_TOKENS, 40):
        tokens = torch.tensor([prompts(num_tokens)[0]])
        with torch.inference_mode():
            torch.testing.assert_close(packed(tokens), model(tokens), atol=1e-5, rtol=1e-5)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                torch.testing.assert_close(packed(tokens), model(tokens), atol=0, rtol=0)


def test_many_texts_are_recorded_with_packed_products():
    model, packed = build("llama"), build("llama")
    pack_linears(packed)
    asked = prompts(*range(3, 3 + FEWEST_TOKENS))
    one = engine(packed, block_tokens=4, num_texts=FEWEST_TOKENS)
    texts = write(one, [greedy(prompt, 6) for prompt in asked])
    assert FEWEST_TOKENS in one.read.recorded_numbers
    assert [text.new_tokens for text in texts] == [uncached(model, prompt, 6) for prompt in asked]


def test_large_models_and_other_processors_are_left_alone(monkeypatch):
    model = build("llama")
    monkeypatch.setattr(packed_linear, "MAX_BYTES", 1)
    pack_linears(model)
    monkeypatch.undo()
    monkeypatch.setattr(cpu_products, "cpu_name", lambda: "Intel(R) Xeon(R)")
    pack_linears(model)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
