import pytest
import torch

from lmtrain.accounting.flops import flops_per_token
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


# Ours -> transformers', whose Conv1D keeps weights [in, out].
NAMES = {
    "attention_norm": "ln_1",
    "qkv": "attn.c_attn",
    "output": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}


def to_transformers(model):
    state = model.state_dict()
    renamed = {
        "transformer.wte.weight": state["token_embedding.weight"],
        "transformer.wpe.weight": state["position_embedding.weight"],
        "transformer.ln_f.weight": state["final_norm.weight"],
        "transformer.ln_f.bias": state["final_norm.bias"],
        "lm_head.weight": state["token_embedding.weight"],
    }
    for layer in range(len(model.layers)):
        for ours, theirs in NAMES.items():
            for kind in ("weight", "bias"):
                tensor = state[f"layers.{layer}.{ours}.{kind}"]
                renamed[f"transformer.h.{layer}.{theirs}.{kind}"] = tensor.T if tensor.ndim == 2 else tensor
    return renamed


@pytest.mark.parametrize("options", [{}, {"num_layers": 3, "width": 64, "num_heads": 2}, {"feed_forward_width": 80}])
def test_logits_and_gradients_equal_those_of_transformers(options):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = tiny(init_std=0.1, **options)
    block = model.layers[0]
    config = GPT2Config(
        vocab_size=97,
        n_positions=40,
        n_embd=model.token_embedding.embedding_dim,
        n_layer=len(model.layers),
        n_head=block.num_heads,
        n_inner=block.feed_forward.up.out_features,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    reference = GPT2LMHeadModel(config)
    reference.load_state_dict(to_transformers(model))
    tokens = torch.randint(97, (2, 29), generator=torch.Generator().manual_seed(1))
    logits, expected = model(tokens), reference(tokens).logits
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)  # fp32, another order of sums
    logits.square().mean().backward()
    expected.square().mean().backward()
    theirs = {name: parameter.grad for name, parameter in reference.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    for name, gradient in to_transformers(model).items():
        if name in theirs:
            torch.testing.assert_close(gradient, theirs[name], atol=1e-5, rtol=1e-3)


def test_width_that_does_not_divide_is_refused():
    with pytest.raises(ConfigurationError, match=r"model\.width=50 is not a multiple of model\.num_heads=4"):
        tiny(width=50)
