import pytest
import torch

from lmtrain.adapters.lora import Lora
from lmtrain.adapters.low_rank import adapters_of, is_of_adapter, layers_of, merge
from lmtrain.models.llama import Llama
from tests.interop.hugging_face import tokens

DIMENSIONS = {"width": 32, "num_layers": 2, "num_heads": 2, "feed_forward_width": 48, "activation": "swiglu"}


def small(**settings):
    model = Llama(**{**DIMENSIONS, "vocab_size": 257, "max_context_tokens": 64, **settings})
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


def moved(model):
    """Fill the factors that begin as zeros."""
    for number, (_, adapter) in enumerate(adapters_of(model)):
        for up in adapter.ups:
            torch.nn.init.normal_(up.weight, std=0.1, generator=torch.Generator().manual_seed(number))
    return model


def test_factors_begin_as_in_peft() -> None:
    for _, adapter in adapters_of(Lora(rank=64, alpha=64).attach(small(), seed=1)):
        num_inputs = adapter.down.in_features
        theirs = torch.nn.init.kaiming_uniform_(torch.empty(64, num_inputs), a=5**0.5)  # of PEFT's LoraLayer
        assert adapter.down.weight.abs().max() <= num_inputs**-0.5
        assert adapter.down.weight.std().item() == pytest.approx(theirs.std().item(), rel=0.1)


def test_an_adapter_changes_nothing_at_first_and_trains_alone() -> None:
    model = small()
    before = model(tokens())
    Lora(rank=3, alpha=6).attach(model, seed=1)
    assert torch.equal(model(tokens()), before)
    model(tokens()).square().mean().backward()
    trained = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert trained == {name for name, _ in model.named_parameters() if is_of_adapter(name)}
    assert len(trained) == 2 * (1 + 3 + 1 + 1 + 1 + 2 + 1 + 1)  # a factor for all inputs and one a fused matrix


def test_merged_weights_compute_the_same_and_train_again() -> None:
    model = moved(Lora(rank=3, alpha=6).attach(small(), seed=1))
    adapted = model(tokens())
    kinds = {name: type(layer).__mro__[1] for name, layer in layers_of(model).items()}
    assert not torch.allclose(adapted, small()(tokens()), atol=1e-3)
    merge(model)
    torch.testing.assert_close(model(tokens()), adapted, atol=2e-5, rtol=1e-4)  # fp32, another order of sums
    assert all(weight.requires_grad for weight in model.parameters())
    assert {name: type(layer) for name, layer in layers_of(model).items()} == kinds
    assert not list(adapters_of(model))


def test_a_router_and_experts_have_no_adapter() -> None:
    experts = {"num_experts": 2, "num_experts_per_token": 1}
    from lmtrain.models.mixture_of_experts import Experts

    assert {name.rpartition(".")[2] for name in layers_of(small(experts=Experts(**experts)))} == {"qkv", "output"}


@pytest.mark.parametrize("stabilized", [False, True])
def test_the_scale_is_alpha_over_the_rank_or_its_root(stabilized: bool) -> None:
    assert Lora(rank=16, alpha=32, rank_stabilized=stabilized).scale == (8 if stabilized else 2)
