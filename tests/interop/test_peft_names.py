from lmtrain.interop.peft_names import Matrix, matrices_of, pattern_value, short_names
from tests.adapters.test_low_rank import small


def test_fused_matrices_stand_apart_with_their_rows() -> None:
    matrices = matrices_of(small(num_kv_heads=1), "llama")
    assert matrices["layers.1.self_attention.qkv"] == [
        Matrix("model.layers.1.self_attn.q_proj", (0, 32)),
        Matrix("model.layers.1.self_attn.k_proj", (32, 48)),
        Matrix("model.layers.1.self_attn.v_proj", (48, 64)),
    ]
    assert matrices_of(small(), "lmtrain")["layers.0.feed_forward.down"] == [
        Matrix("model.layers.0.feed_forward.down", (0, 32))
    ]


def test_names_are_shortened_where_no_other_layer_is_meant() -> None:
    assert short_names(["a.0.up", "a.1.up"], ["a.0.up", "a.1.up", "a.0.down"]) == ["up"]
    assert short_names(["a.0.up"], ["a.0.up", "b.0.up"]) == ["a.0.up"]
    assert [pattern_value({"up": 3}, name, 1) for name in ("a.up", "a.gate_up")] == [3, 1]
