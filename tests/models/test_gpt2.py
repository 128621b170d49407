import pytest
import torch

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.errors import ConfigurationError
from lmtrain.models.gpt2 import GPT2


def tiny(**options):
    dimensions = {"width": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 97, "max_context_tokens": 40}
    model = GPT2(**(dimensions | options))
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize(
    ("width", "num_layers", "num_heads", "expected"), [(768, 12, 12, 124_439_808), (1600, 48, 25, 1_557_611_200)]
)
def test_published_shapes_have_their_published_counts(width, num_layers, num_heads, expected):
    with torch.device("meta"):
        model = GPT2(
            width=width, num_layers=num_layers, num_heads=num_heads, vocab_size=50_257, max_context_tokens=1024
        )
    assert model.shape().num_parameters == expected


def test_gpt2_flops_match_the_table_of_formulas():
    with torch.device("meta"):
        model = GPT2(width=768, num_layers=12, num_heads=12, vocab_size=50_257, max_context_tokens=1024)
    flops = flops_per_token(model.shape(), 1024)
    assert (flops.palm / 1e9, flops.causal / 1e9, flops.six_n / 1e9) == pytest.approx((0.855, 0.798, 0.747), abs=1e-3)


def test_later_tokens_change_nothing_before_them():
    model = tiny()
    tokens = torch.randint(97, (2, 40))
    changed = tokens.clone()
    changed[:, 17:] = (changed[:, 17:] + 1) % 97
    assert torch.equal(model(tokens)[:, :17], model(changed)[:, :17])
    assert not torch.allclose(model(tokens)[:, 17:], model(changed)[:, 17:])


def test_documents_in_one_row_are_as_if_each_were_alone():
    model = tiny()
    tokens = torch.randint(97, (2, 32), generator=torch.Generator().manual_seed(1))
    documents = torch.zeros(2, 32, dtype=torch.int32)
    documents[0, 5:], documents[0, 20:], documents[1, 31:] = 1, 2, 1
    packed = model(tokens, documents=documents)
    for row, start, end in ((0, 0, 5), (0, 5, 20), (0, 20, 32), (1, 0, 31), (1, 31, 32)):
        alone = model(tokens[row : row + 1, start:end])[0]
        # fp32, other shapes of the same products.
        torch.testing.assert_close(packed[row, start:end], alone, atol=2e-5, rtol=1e-4)


def test_a_context_beyond_the_learned_positions_is_refused():
    with pytest.raises(ConfigurationError, match=r"batch\.context_tokens=41 is over model\.max_context_tokens=40"):
        tiny()(torch.zeros(1, 41, dtype=torch.int64))


def test_width_that_does_not_divide_is_refused():
    with pytest.raises(ConfigurationError, match=r"model\.width=50 is not a multiple of model\.num_heads=4"):
        tiny(width=50)


def test_without_biases_every_parameter_is_a_weight():
    names = [name for name, _ in tiny(biases=False).named_parameters()]
    assert names == [name for name, _ in tiny().named_parameters() if not name.endswith("bias")]


def test_a_head_of_its_own_is_counted_drawn_and_used():
    tied, untied = tiny(), tiny(tie_embeddings=False)
    assert untied.shape().num_parameters == tied.shape().num_parameters + 97 * 48
    assert untied.shape().num_matmul_parameters == tied.shape().num_matmul_parameters
    assert untied.head is not None
    assert untied.head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    tokens = torch.randint(97, (1, 8))
    untied.head.weight.data.zero_()
    assert torch.equal(untied(tokens), torch.zeros(1, 8, 97))
