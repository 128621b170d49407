from lmtrain.tokenizers.special_tokens import CHAT_TOKENS, END_OF_TEXT, is_unused, unused_tokens


def test_all_special_tokens_have_names_of_their_own():
    names = [END_OF_TEXT, *CHAT_TOKENS, *unused_tokens(50)]
    assert len(set(names)) == len(names) == 61
    assert unused_tokens(0) == ()


def test_every_start_has_an_end():
    starts = [name.removesuffix("_start|>") for name in CHAT_TOKENS if name.endswith("_start|>")]
    assert [f"{start}_end|>" for start in starts] == [name for name in CHAT_TOKENS if name.endswith("_end|>")]


def test_unused_tokens_are_told_from_the_others():
    assert all(map(is_unused, unused_tokens(3)))
    assert not any(map(is_unused, (END_OF_TEXT, *CHAT_TOKENS)))
