import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

from lmtrain.models.attention.base import Prepared, seen_tokens
from lmtrain.models.attention.eager import mix_seen
from lmtrain.models.attention.flex import BLOCK_TOKENS, Flex, block_mask
from tests.models.attention.kernel_checks import check_against_eager, qkv, rows_of_documents

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture
def backward_on_cpu(monkeypatch):
    """Let torch's own plain-operations backward run, which it refuses on a CPU only for want of a compiled one."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)


def listed_blocks(counts, columns):
    """Return [B, N, N], True where a block is listed."""
    num_blocks = columns.shape[-1]
    rank = torch.arange(num_blocks)
    listed = torch.zeros(columns.shape[0], num_blocks, num_blocks, dtype=torch.bool)
    return listed.scatter(2, columns[:, 0].long(), rank < counts[:, 0, :, None])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(1, 700),
    st.one_of(st.none(), st.integers(1, 700)),
    st.sampled_from((None, 2, 50, 128, 300)),
    st.integers(0, 1000),
)
def test_blocks_are_sorted_as_a_look_at_every_pair_would(num_tokens, window_tokens, mean_tokens, seed):
    documents = None if mean_tokens is None else rows_of_documents(num_tokens, mean_tokens=mean_tokens, seed=seed)
    mask = block_mask(documents, num_tokens=num_tokens, window_tokens=window_tokens, device=CPU)
    seen = seen_tokens(num_tokens, window_tokens=window_tokens, device=CPU, documents=documents)
    seen = seen.reshape(-1, num_tokens, num_tokens)
    rest = -num_tokens % BLOCK_TOKENS
    blocks = [
        torch.nn.functional.pad(seen.float(), (0, rest, 0, rest), value=fill)
        .unflatten(2, (-1, BLOCK_TOKENS))
        .unflatten(1, (-1, BLOCK_TOKENS))
        for fill in (0.0, 1.0)
    ]
    some, every = blocks[0].amax((2, 4)).bool(), blocks[1].amin((2, 4)).bool()
    wholly = listed_blocks(mask.full_kv_num_blocks, mask.full_kv_indices)
    partly = listed_blocks(mask.kv_num_blocks, mask.kv_indices)
    assert not (wholly & partly).any()
    assert torch.equal(wholly | partly, some)  # nothing seen is skipped, nothing hidden is computed
    assert not (wholly & ~every).any()
    below = torch.ones_like(every[0]).tril(-1)
    below[-1] &= rest == 0  # rows that are not there would have seen less
    assert not (every & below & ~wholly).any()  # and no mask is applied where all is seen


@pytest.mark.parametrize("first_row", [1, 128, 290])
@pytest.mark.parametrize("window_tokens", [None, 70])
def test_blocks_of_the_last_rows_show_what_those_rows_see(first_row: int, window_tokens: int | None) -> None:
    documents = rows_of_documents(400, mean_tokens=90)
    mask = block_mask(documents, num_tokens=400, window_tokens=window_tokens, device=CPU, first_row=first_row)
    seen = seen_tokens(400, window_tokens=window_tokens, device=CPU, documents=documents)[..., first_row:, :]
    q, k, v = qkv(num_tokens=400, gradients=False)
    rows = q[:, :, first_row:]
    made = Flex()(rows, k, v, documents=Prepared({None: mask}))
    torch.testing.assert_close(made, mix_seen(rows, k, v, seen), rtol=1e-5, atol=1e-5)  # fp32


@pytest.mark.parametrize("window_tokens", [None, 9])
@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize("num_kv_heads", [1, 4])
def test_values_and_gradients_equal_the_reference(backward_on_cpu, window_tokens, has_documents, num_kv_heads):
    inputs = qkv(num_kv_heads=num_kv_heads, num_tokens=150)
    documents = rows_of_documents(150, mean_tokens=40) if has_documents else None
    check_against_eager(Flex(), inputs, window_tokens=window_tokens, documents=documents)


def test_bf16_values_equal_the_reference(backward_on_cpu):
    documents = rows_of_documents(40)
    check_against_eager(Flex(), qkv(num_tokens=40, dtype=torch.bfloat16), window_tokens=7, documents=documents)


@pytest.mark.slow
def test_the_compiled_kernel_of_torch_equals_the_reference_on_a_cpu():
    inputs = qkv(num_tokens=140, gradients=False)
    documents = rows_of_documents(140, mean_tokens=40)
    block = torch.compile(Flex().__call__, fullgraph=True, dynamic=False)
    with torch.no_grad():
        result = block(*inputs, window_tokens=50, documents=documents)
        torch.testing.assert_close(result, Flex()(*inputs, window_tokens=50, documents=documents), rtol=0, atol=1e-5)
