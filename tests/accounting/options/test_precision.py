"""What the precisions say, held to what torch's formats are."""

import pytest
import torch

from tests import facts

WORDS = ("fp32", "tf32", "fp16_mixed", "bf16_mixed", "bf16_true", "fp8")


@pytest.mark.parametrize("word", WORDS)
def test_activations_have_the_bytes_of_the_dtype_beside_the_products(word: str) -> None:
    found = facts.precision(word)
    dtype: torch.dtype = getattr(torch, found.compute_dtype)
    assert (found.name, found.bytes_of.activations) == (word, dtype.itemsize)


@pytest.mark.parametrize("word", WORDS)
def test_a_copy_is_kept_exactly_where_products_have_another_format_than_weights(word: str) -> None:
    held = facts.precision(word).bytes_of
    assert held.compute_copy == (held.activations if held.activations < held.weights else 0)
    assert facts.precision(word).casts_parameters == (held.weights < torch.float32.itemsize)


def test_steps_are_recorded_where_that_is_known_to_be_right() -> None:
    assert [word for word in WORDS if facts.precision(word).unrecordable] == ["fp16_mixed", "fp8"]
