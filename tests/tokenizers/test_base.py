import numpy as np
import pytest

from lmtrain.tokenizers.base import sha256_of
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

TEXT = "The same words, 12345 times; <|end_of_text|> ünd 世界\r\n"


@pytest.fixture(params=["byte_level", "bpe"], scope="module")
def tokenizer(request):
    made = {"byte_level": ByteLevelTokenizer, "bpe": lambda: train_byte_pairs([TEXT] * 9, vocab_size=300)}
    return made[request.param]()


def test_every_tokenizer_keeps_its_ids_below_its_vocabulary_size(tokenizer):
    assert 0 <= min(tokenizer.encode(TEXT)) <= max(tokenizer.encode(TEXT)) < tokenizer.vocab_size
    assert 0 <= tokenizer.end_of_text_id < tokenizer.vocab_size


def test_every_tokenizer_counts_the_bytes_of_a_text(tokenizer):
    counts = tokenizer.token_bytes()
    assert counts.shape == (tokenizer.vocab_size,)
    assert counts.dtype == np.uint16
    assert int(counts[tokenizer.encode(TEXT)].sum()) == len(TEXT.encode())
    assert counts[tokenizer.end_of_text_id] == 0


def test_every_tokenizer_has_each_byte_as_an_entry_of_its_own(tokenizer):
    assert {bytes([byte]) for byte in range(256)} <= set(tokenizer.bytes_of_ids())


def test_decoding_joins_bytes_before_it_reads_characters(tokenizer):
    ids = [tokenizer.bytes_of_ids().index(bytes([byte])) for byte in "世".encode()]
    assert tokenizer.decode(ids) == "世"
    assert tokenizer.decode(ids[:2]) == "\ufffd"
    assert tokenizer.decode([tokenizer.end_of_text_id, *ids]) == "世"


def test_a_sha256_does_not_depend_on_the_order_of_keys():
    assert sha256_of({"a": 1, "b": "ü"}) == sha256_of({"b": "ü", "a": 1})
    assert sha256_of({"a": 1}) != sha256_of({"a": 2})
