"""Every tokenizer gives every text back, and learned ones have the size asked for."""

import json

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from lmtrain.errors import DataError
from lmtrain.tokenizers.base import (
    CHARACTER_OF_BYTE,
    END_OF_TEXT,
    bytes_of,
)
from lmtrain.tokenizers.bpe import BytePairTokenizer, train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer


@given(st.text())
def test_text_survives_a_round_trip(text):
    tokenizer = ByteLevelTokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_other_tools_read_the_same_ids_from_its_json(tmp_path):
    tokenizer = ByteLevelTokenizer()
    tokenizer.save(tmp_path)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Grüße, 世界!\n\t\x00 ~"
    assert reference.encode(text, add_special_tokens=False).ids == tokenizer.encode(text)
    assert reference.decode(tokenizer.encode(text)) == text
    assert reference.token_to_id(END_OF_TEXT) == 256


TEXTS = [f"def function_{n % 7}(argument): return argument + {n}  # Straße № {n}\n" * 3 for n in range(60)]
TOKENIZER = train_byte_pairs(TEXTS, vocab_size=400)


@pytest.mark.parametrize("vocab_size", [257, 300, 384, 5000])
def test_training_gives_exactly_the_vocabulary_asked_for(vocab_size):
    tokenizer = train_byte_pairs(TEXTS, vocab_size=vocab_size)
    assert tokenizer.vocab_size == len(tokenizer.token_bytes()) == vocab_size
    assert all(0 <= token < vocab_size for token in tokenizer.encode("".join(TEXTS) + "unseen Ωords"))


@given(st.text())
@example("")
@example("\r\n\r \u2028\x00 1234567 don't  DON'T\t\t")
@example("a<|end_of_text|>b <|unused_0|>")
def test_text_survives_a_round_trip_bpe(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert int(TOKENIZER.token_bytes()[ids].sum()) == len(text.encode())


@pytest.mark.parametrize("text", [END_OF_TEXT, f"x{END_OF_TEXT}{END_OF_TEXT}", f" {END_OF_TEXT}\n", "<|unused_3|>"])
def test_the_text_of_a_special_token_never_becomes_its_id(text):
    tokenizer = train_byte_pairs([*TEXTS, text * 50], vocab_size=2000)
    special_ids = set((tokenizer.token_bytes() == 0).nonzero()[0].tolist())
    assert tokenizer.end_of_text_id in special_ids
    assert not special_ids & set(tokenizer.encode(text))
    assert not special_ids & set(tokenizer.encode_batch([text])[0])
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_tokenizer_that_is_not_byte_level_is_refused():
    content = json.loads(TOKENIZER._tokenizer.to_str())
    content["model"]["vocab"]["▁the"] = 999
    with pytest.raises(DataError, match=r"not byte-level: .*▁.*tokenizer=bpe"):
        BytePairTokenizer(json.dumps(content))


def test_added_tokens_that_are_not_special_count_their_bytes():
    content = json.loads(TOKENIZER._tokenizer.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    content["added_tokens"].append({"id": 400, "content": "    ", **flags})
    tokenizer = BytePairTokenizer(json.dumps(content))
    assert tokenizer.vocab_size == 401
    assert tokenizer.encode("    ") == [400]
    assert tokenizer.token_bytes()[400] == 4


def test_the_table_is_the_one_of_the_tokenizers_library():
    assert set(CHARACTER_OF_BYTE) == set(pre_tokenizers.ByteLevel.alphabet())
    ((token, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("é\n \x00~")
    assert bytes_of(token) == "é\n \x00~".encode()
