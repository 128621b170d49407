import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.parallel.ulysses import require_shares
from tests.optim.models import tiny_model


def llama(**settings: object) -> LanguageModel:
    sizes = {"width": 24, "num_layers": 1, "num_heads": 6, "feed_forward_width": 30, "vocab_size": 31}
    with torch.device("meta"):
        return Llama(**{**sizes, "max_context_tokens": 8, **settings})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("settings", "num_ranks", "message"),
    [
        ({}, 4, "strategy.context_size=4 does not divide model.num_heads=6 over its ranks; nearest valid: 3."),
        ({"num_kv_heads": 2}, 3, "model.num_kv_heads=2 over its ranks; nearest valid: 2."),
        ({"num_kv_heads": 1}, 2, "model.num_kv_heads=1 over its ranks; use strategy=fsdp."),
        (
            {"qk_norm": True, "qk_norm_over": "width", "key_smear": True},
            2,
            "model.key_smear=true reads the keys of earlier slices",
        ),
    ],
)
def test_heads_that_cannot_be_shared_are_refused_with_what_can(
    settings: dict[str, object], num_ranks: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        require_shares(llama(**settings), num_ranks=num_ranks)


def test_models_that_divide_are_taken_and_unknown_ones_named() -> None:
    experts = Experts(num_experts=4, num_experts_per_token=2)
    require_shares(llama(num_kv_heads=2, qk_norm=True, qk_norm_over="width", experts=experts), num_ranks=2)
    require_shares(GPT2(width=16, num_layers=1, num_heads=4, vocab_size=13, max_context_tokens=8), num_ranks=4)
    with pytest.raises(ConfigurationError, match="has no shares of heads for a context group, GPT2 and Llama have"):
        require_shares(tiny_model(), num_ranks=2)
