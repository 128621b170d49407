import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmtrain.tokenizers import fast_encoder
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.fast_encoder import HARD_TEXTS, FastEncoder
from lmtrain.tokenizers.flat_ids import flatten
from tests.tokenizers import layouts

TOKENIZER = train_byte_pairs([*layouts.TEXTS, *HARD_TEXTS], vocab_size=500)
JSON = TOKENIZER._tokenizer.to_str()


@pytest.fixture
def counting():
    """The reference, and the texts that it was asked for."""
    asked: list[str] = []

    def reference(texts):
        asked.extend(texts)
        return TOKENIZER.encode_batch(texts)

    return reference, asked


class Wrong:
    """An encoder like fastokens whose ids are wrong for the texts that contain a word."""

    def __init__(self, word):
        self.word = word

    def encode_batch_flat(self, texts, *, add_special_tokens, split_special_tokens):
        assert (add_special_tokens, split_special_tokens) == (False, True)
        encoded = TOKENIZER.encode_batch(texts)
        ids, ends = flatten([[7, *ids] if self.word in text else ids for text, ids in zip(texts, encoded, strict=True)])
        return ids.tobytes(), np.array([0, *ends], dtype=np.uint64).tobytes()


def replaced(monkeypatch, made):
    """Make `import fastokens` give an encoder of the test's own; None: it is not installed."""
    module = None
    if made is not None:
        module = type("fastokens", (), {"Tokenizer": type("Tokenizer", (), {"from_json_str": staticmethod(made)})})
    monkeypatch.setitem(sys.modules, "fastokens", module)


def ids_of(encoded):
    """Return plain lists."""
    return encoded[0].tolist(), encoded[1].tolist()


@given(st.lists(st.text(), max_size=6))
@example([])
@example(["", "a", "", "\u180e", "b\u180e  x", "", "<|end_of_text|>"])
def test_flat_ids_are_those_of_the_texts_one_by_one(texts):
    ids, ends = TOKENIZER.encode_batch_flat(texts)
    assert (ids.dtype, ends.dtype) == (np.uint32, np.int64)
    assert ids_of((ids, ends)) == ids_of(flatten([TOKENIZER.encode(text) for text in texts]))


def test_fastokens_is_adopted_here_and_gives_the_ids_of_tokenizers_for_every_character():
    pytest.importorskip("fastokens")
    assert FastEncoder(JSON, reference=TOKENIZER.encode_batch, special_tokens=TOKENIZER.special_tokens).is_fast
    characters = [chr(code) for code in range(0x12000) if not 0xD800 <= code < 0xE000]
    texts = [
        "".join(f" a{one}1{one}\n  {one}" for one in characters[at : at + 64]) for at in range(0, len(characters), 64)
    ]
    assert ids_of(TOKENIZER.encode_batch_flat(texts)) == ids_of(flatten(TOKENIZER.encode_batch(texts)))


def test_only_the_first_texts_are_encoded_twice(monkeypatch, counting):
    replaced(monkeypatch, lambda text: Wrong("\x00never"))
    monkeypatch.setattr(fast_encoder, "SAMPLE_BYTES", 10)
    encoder = FastEncoder(JSON, reference=counting[0], special_tokens={})
    counting[1].clear()
    encoder(["12345678"])
    encoder(["the next text", "one more"])
    encoder(["and more"])
    assert counting[1] == ["12345678", "the next text"]


def test_other_ids_in_the_first_texts_are_seen_and_told_once(monkeypatch, counting, capsys):
    replaced(monkeypatch, lambda text: Wrong("trap"))
    encoder = FastEncoder(JSON, reference=counting[0], special_tokens={})
    assert encoder.is_fast
    texts = ["fine", "a trap"]
    assert ids_of(encoder(texts)) == ids_of(flatten(TOKENIZER.encode_batch(texts)))
    assert not encoder.is_fast
    encoder(texts)
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "fastokens' scanner gives other ids than tokenizers: its regular expressions encode",
        "fastokens gives other ids than tokenizers for this tokenizer: tokenizers encodes, which is slower",
    ]


def test_where_only_the_scanner_is_wrong_the_expressions_go_on(monkeypatch, counting, capsys):
    replaced(monkeypatch, lambda text: Wrong("trap" if "{1,3}" in text else "\x00never"))
    encoder = FastEncoder(JSON, reference=counting[0], special_tokens={})
    texts = ["fine", "a trap of 2024"]
    assert ids_of(encoder(texts)) == ids_of(flatten(TOKENIZER.encode_batch(texts)))
    assert encoder.is_fast
    assert capsys.readouterr().err == (
        "fastokens' scanner gives other ids than tokenizers: its regular expressions encode\n"
    )


@pytest.mark.parametrize("hard", ["\u65e5", "<|secret|>"])
def test_other_ids_in_hard_texts_or_special_tokens_are_seen_before_any_text(monkeypatch, counting, hard):
    replaced(monkeypatch, lambda text: Wrong(hard))
    assert not FastEncoder(JSON, reference=counting[0], special_tokens={"<|secret|>": 3}).is_fast


def test_without_fastokens_tokenizers_encodes_and_says_so_once(monkeypatch, counting, capsys):
    replaced(monkeypatch, None)
    encoder = FastEncoder(JSON, reference=counting[0], special_tokens={})
    assert ids_of(encoder(["a text"])) == ids_of(flatten(TOKENIZER.encode_batch(["a text"])))
    assert not encoder.is_fast
    told = capsys.readouterr().err
    assert told == "fastokens is not installed: tokenizers encodes, which is slower; pip install fastokens\n"


def test_a_file_that_fastokens_cannot_read_costs_a_line(monkeypatch, counting, capsys):
    def unreadable(text):
        raise ValueError("no such pre-tokenizer")

    replaced(monkeypatch, unreadable)
    assert not FastEncoder(JSON, reference=counting[0], special_tokens={}).is_fast
    assert capsys.readouterr().err == (
        "fastokens cannot read this tokenizer (no such pre-tokenizer): tokenizers encodes, which is slower\n"
    )


def test_a_long_text_is_compared_only_at_its_start(monkeypatch, counting):
    replaced(monkeypatch, lambda text: Wrong("\x00never"))
    encoder = FastEncoder(JSON, reference=counting[0], special_tokens={})
    counting[1].clear()
    encoder(["word " * 100_000])
    assert sum(map(len, counting[1])) == fast_encoder.MOST_CHARACTERS


def test_special_ids_from_the_fast_encoder_are_made_anew_by_the_reference(monkeypatch, counting):
    replaced(monkeypatch, lambda text: Wrong("late trap"))
    monkeypatch.setattr(fast_encoder, "SAMPLE_BYTES", 0)
    encoder = FastEncoder(JSON, reference=counting[0], special_tokens={"<|x|>": 7})
    texts = ["fine", "a late trap", "", "fine too"]
    assert ids_of(encoder(texts)) == ids_of(flatten(TOKENIZER.encode_batch(texts)))
    assert encoder.is_fast
