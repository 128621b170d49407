import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.parallel.tensor_parallel import require_cuts
from tests.optim.models import tiny_model


def llama(**settings: object) -> LanguageModel:
    sizes = {"width": 24, "num_layers": 1, "num_heads": 6, "feed_forward_width": 30, "vocab_size": 31}
    with torch.device("meta"):
        return Llama(**{**sizes, "max_context_tokens": 8, **settings})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("settings", "num_ranks", "message"),
    [
        ({}, 4, "strategy.tensor_size=4 does not divide model.num_heads=6 into parts; nearest valid: 3."),
        ({"num_kv_heads": 2}, 3, "model.num_kv_heads=2 into parts; nearest valid: 2."),
        ({"num_heads": 4, "feed_forward_width": 30}, 4, "model.feed_forward_width=30 into parts; nearest valid: 3."),
        ({"vocab_size": 5, "num_heads": 4, "feed_forward_width": 8}, 4, "model.vocab_size=5 into parts"),
        ({"qk_norm": True, "qk_norm_over": "width"}, 2, "model.qk_norm_over=width reads the heads of all ranks"),
        (
            {"experts": Experts(num_experts=4, num_experts_per_token=2)},
            2,
            "model.experts cannot be cut .* use strategy=fsdp",
        ),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_what_can(
    settings: dict[str, object], num_ranks: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_cuts(llama(**settings), num_ranks=num_ranks)


def test_models_that_divide_are_taken_and_unknown_ones_named() -> None:
    require_cuts(llama(num_kv_heads=2, qk_norm=True, key_smear=True), num_ranks=2)
    require_cuts(GPT2(width=16, num_layers=1, num_heads=4, vocab_size=13, max_context_tokens=8), num_ranks=4)
    with pytest.raises(ConfigurationError, match="has no cuts for a tensor group, GPT2 and Llama have"):
        require_cuts(tiny_model(), num_ranks=2)
