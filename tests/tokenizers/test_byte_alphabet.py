import pytest
from tokenizers import pre_tokenizers

from lmtrain.tokenizers.byte_alphabet import BYTE_OF_CHARACTER, CHARACTER_OF_BYTE, bytes_of


def test_every_byte_has_one_character_of_its_own():
    assert len(set(CHARACTER_OF_BYTE)) == 256
    assert [BYTE_OF_CHARACTER[character] for character in CHARACTER_OF_BYTE] == list(range(256))


def test_the_table_is_the_one_of_the_tokenizers_library():
    assert set(CHARACTER_OF_BYTE) == set(pre_tokenizers.ByteLevel.alphabet())
    ((token, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("é\n \x00~")
    assert bytes_of(token) == "é\n \x00~".encode()


def test_an_entry_that_is_no_bytes_is_a_key_error():
    with pytest.raises(KeyError):
        bytes_of("▁the")
