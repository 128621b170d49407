import pytest

from lmtrain.accounting.model.flops import causal_tokens, flops_per_token, seen_tokens
from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape


def shape(*, num_parameters, num_matmul_parameters, attention):
    return ModelShape(
        num_parameters=num_parameters,
        num_embedding_parameters=0,
        num_matmul_parameters=num_matmul_parameters,
        num_active_parameters=num_parameters,
        attention=tuple(attention),
    )


def nano_depth_24(*, short_window):
    """Twelve heads of 128 over 24 layers, three of every four with a short window."""
    windows = [None if layer % 4 == 3 else short_window for layer in range(24)]
    return shape(
        num_parameters=1_384_122_122,
        num_matmul_parameters=729_810_624,
        attention=[AttentionShape(num_heads=12, head_width=128, window_tokens=window) for window in windows],
    )


def test_windowed_attention_matches_the_published_nano_counts():
    assert flops_per_token(nano_depth_24(short_window=512), 2048).palm == pytest.approx(4.775225e9, rel=1e-6)
    assert flops_per_token(nano_depth_24(short_window=None), 2048).palm == pytest.approx(5.284823e9, rel=2e-6)


def test_depth_12_nano_matches_its_published_count():
    layers = [AttentionShape(6, 128, None if layer % 4 == 3 else 512) for layer in range(12)]
    nano = shape(num_parameters=286_261_730, num_matmul_parameters=110_100_912, attention=layers)
    assert flops_per_token(nano, 2048).palm == pytest.approx(7.5970e8, rel=1e-4)


def test_llama_and_gpt2_match_the_table_of_formulas():
    # GF per token of Llama 3.2 1B at 4096 tokens and GPT-2 124M at 1024.
    llama = shape(
        num_parameters=1_235_814_400,
        num_matmul_parameters=1_235_814_400 - 33 * 2048,  # all but the norms; the head is tied
        attention=[AttentionShape(32, 64)] * 16,
    )
    flops = flops_per_token(llama, 4096)
    assert (flops.palm / 1e9, flops.causal / 1e9, flops.six_n / 1e9) == pytest.approx((9.025, 8.220, 7.415), abs=1e-3)


def test_causal_convention_counts_what_the_mask_leaves_and_nothing_else():
    model = shape(num_parameters=10, num_matmul_parameters=7, attention=[AttentionShape(2, 8)])
    flops = flops_per_token(model, 64)
    assert flops.palm == 6 * 7 + 12 * 2 * 8 * 64
    assert flops.causal == 6 * 7 + 12 * 2 * 8 * 65 / 2


@pytest.mark.parametrize("window_tokens", [1, 2, 5, 12, 40, None])
@pytest.mark.parametrize("lengths", [[12], [5, 7], [1, 1, 10], [3]])
def test_causal_tokens_are_those_that_a_mask_shows(window_tokens, lengths):
    """Rows of 12 tokens, masked pair by pair."""
    shown = [
        sum(0 <= query - key < (window_tokens or 12) for key in range(length))
        for length in lengths
        for query in range(length)
    ]
    documents = {length: float(lengths.count(length)) for length in lengths}
    counted = causal_tokens(12, window_tokens=window_tokens, documents=documents)
    assert counted == pytest.approx(sum(shown) / len(shown))


def test_documents_that_do_not_see_one_another_cost_less_attention():
    assert seen_tokens(1024) == 1024
    assert seen_tokens(1024, documents={256: 7}) == 256
    assert seen_tokens(1024, documents={256: 4, 1024: 1}) == (256 + 1024) // 2, "half of the tokens are in each"
    assert seen_tokens(1024, window_tokens=512, documents={256: 4, 1024: 1}) == (256 + 512) // 2
    assert seen_tokens(1024, documents={2560: 1}) == round((2048 * 1024 + 512 * 512) / 2560), "cut into contexts"
