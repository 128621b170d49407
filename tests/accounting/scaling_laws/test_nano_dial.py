import pytest
import torch

from lmtrain.accounting.scaling_laws.depth_scaling import num_scaling_parameters
from lmtrain.models.nano import nano


@pytest.mark.parametrize(("depth", "vocab_size"), [(1, 61), (4, 257), (5, 1000), (12, 32_768), (13, 4096)])
def test_what_multiplies_every_token_is_counted_as_in_the_real_model(depth: int, vocab_size: int) -> None:
    with torch.device("meta"):
        shape = nano(depth=depth, vocab_size=vocab_size, max_context_tokens=256).shape()
    assert num_scaling_parameters(depth, vocab_size=vocab_size) == shape.num_matmul_parameters


def test_the_published_counts() -> None:
    assert num_scaling_parameters(12, vocab_size=32_768) == 110_100_912
    assert num_scaling_parameters(24, vocab_size=32_768) == 729_810_624
