import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.errors import ConfigurationError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tokenizers.special_tokens import END_OF_TEXT


@given(st.text())
def test_text_survives_a_round_trip(text):
    tokenizer = ByteLevelTokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_count_one_and_special_tokens_none():
    counts = ByteLevelTokenizer(vocab_size=300).token_bytes()
    assert counts.dtype == np.uint16
    assert counts.tolist() == [1] * 256 + [0] * 44


def test_special_text_stays_text():
    tokenizer = ByteLevelTokenizer()
    assert tokenizer.end_of_text_id == 256
    assert tokenizer.end_of_text_id not in tokenizer.encode(END_OF_TEXT)


def test_half_a_character_decodes_to_a_replacement():
    tokenizer = ByteLevelTokenizer()
    assert tokenizer.decode([0xE2, 0x82]) == "\ufffd"
    assert tokenizer.decode_bytes([0xE2, 0x82, 256]) == b"\xe2\x82"


def test_a_saved_tokenizer_reads_back_the_same(tmp_path):
    tokenizer = ByteLevelTokenizer(vocab_size=260)
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.fingerprint, again.vocab_size) == (tokenizer.fingerprint, 260)
    assert again.fingerprint != ByteLevelTokenizer().fingerprint


def test_other_tools_read_the_same_ids_from_its_json(tmp_path):
    tokenizer = ByteLevelTokenizer()
    tokenizer.save(tmp_path)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Grüße, 世界!\n\t\x00 ~"
    assert reference.encode(text, add_special_tokens=False).ids == tokenizer.encode(text)
    assert reference.decode(tokenizer.encode(text)) == text
    assert reference.token_to_id(END_OF_TEXT) == 256


def test_a_vocabulary_without_room_is_refused():
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size=256 cannot hold .* nearest valid: 257"):
        ByteLevelTokenizer(vocab_size=256)
