import pytest

from lmtrain.models.attention.blocked import NUM_BLOCKS, Blocked
from tests.models.attention.kernel_checks import check_against_eager, qkv, rows_of_documents


@pytest.mark.parametrize("num_tokens", [1, 2, NUM_BLOCKS - 1, NUM_BLOCKS, NUM_BLOCKS + 1, 7, 63, 64, 65])
def test_any_number_of_tokens_is_cut_into_blocks_without_loss(num_tokens):
    inputs = qkv(num_tokens=num_tokens)
    check_against_eager(Blocked(), inputs)
    check_against_eager(Blocked(), inputs, window_tokens=5, documents=rows_of_documents(num_tokens))
