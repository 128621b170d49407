from lmtrain.accounting.observed.speed_names import speed_name


def test_a_speed_says_where_it_leaves_tokens_out() -> None:
    assert [speed_name(share) for share in (1.0, 0.98, 0.3)] == ["tokens/s", "tokens/s", "tokens/s with loss"]
