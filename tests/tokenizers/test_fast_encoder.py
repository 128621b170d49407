"""fastokens gives the ids of `tokenizers`, or is not used; a hostile expression is one error."""

import json
import sys

import numpy as np
import pytest

from lmtrain.errors import DataError
from lmtrain.tokenizers.base import flatten
from lmtrain.tokenizers.bpe import BytePairTokenizer, train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.fast_encoder import HARD_TEXTS, FastEncoder
from tests.tokenizers import layouts

TOKENIZER = train_byte_pairs([*layouts.TEXTS, *HARD_TEXTS, "12345 2024 99 100 "], vocab_size=600)
TEXTS = ["in 2024 we had 1234567 of them", "", "none", "0123456789" * 9, "\u0378 123", "9", "<|end_of_text|>", "\u180e"]


def ids_of(encoded):
    return encoded[0].tolist(), encoded[1].tolist()


def encoder_of(tokenizer):
    specials = tokenizer.special_tokens
    return FastEncoder(tokenizer._tokenizer.to_str(), reference=tokenizer.encode_batch, special_tokens=specials)


ENCODER = encoder_of(TOKENIZER)


def test_every_character_has_the_ids_of_tokenizers():
    pytest.importorskip("fastokens")
    encoder = ENCODER
    characters = [chr(code) for code in range(0x12000) if not 0xD800 <= code < 0xE000]
    texts = [
        "".join(f" a{one}1{one}\n  {one}" for one in characters[at : at + 64]) for at in range(0, len(characters), 64)
    ]
    assert ids_of(encoder(texts)) == ids_of(flatten(TOKENIZER.encode_batch(texts)))
    assert encoder._fast is not None


class Wrong:
    """An encoder like fastokens whose ids are wrong for the texts that contain "trap"."""

    def encode_batch_flat(self, texts, *, add_special_tokens, split_special_tokens):
        assert (add_special_tokens, split_special_tokens) == (False, True)
        encoded = TOKENIZER.encode_batch(texts)
        ids, ends = flatten([[7, *ids] if "trap" in text else ids for text, ids in zip(texts, encoded, strict=True)])
        return ids.tobytes(), np.array([0, *ends], dtype=np.uint64).tobytes()


def test_other_ids_in_the_first_texts_end_its_use(monkeypatch, capsys):
    made = type("Tokenizer", (), {"from_json_str": staticmethod(lambda _: Wrong())})
    monkeypatch.setitem(sys.modules, "fastokens", type("fastokens", (), {"Tokenizer": made}))
    encoder = encoder_of(TOKENIZER)
    assert encoder._fast is not None
    texts = ["fine", "a trap"]
    for _ in range(2):
        assert ids_of(encoder(texts)) == ids_of(flatten(TOKENIZER.encode_batch(texts)))
    assert encoder._fast is None
    assert len(capsys.readouterr().err.splitlines()) == 1


def with_expression(expression: str, tmp_path) -> str:
    """Return the tokenizer.json of bytes, cut by an expression."""
    ByteLevelTokenizer(vocab_size=300).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}
    return json.dumps(content)


def test_an_expression_that_gives_up_is_one_line_at_the_start(tmp_path):
    with pytest.raises(DataError, match=r"^tokenizer.json cannot encode this text: .*retry-limit.*; use another"):
        BytePairTokenizer(with_expression("(?:a|a|ab)+c", tmp_path), end_of_text="<|end_of_text|>")


@pytest.mark.parametrize("way", ["encode", "encode_batch", "encode_batch_flat"])
def test_an_expression_that_gives_up_later_is_one_line_in_every_way_of_encoding(way, tmp_path):
    tokenizer = BytePairTokenizer(with_expression("(?:ж|ж|жщ)+ю", tmp_path), end_of_text="<|end_of_text|>")
    texts = ["ж" * 40, "a"]
    assert tokenizer.decode(tokenizer.encode("a жю")) == "a жю"
    with pytest.raises(DataError) as refusal:
        getattr(tokenizer, way)(texts[0] if way == "encode" else texts)
    assert "\n" not in str(refusal.value)
