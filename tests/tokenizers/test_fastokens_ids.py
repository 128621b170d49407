import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.fast_encoder import HARD_TEXTS
from lmtrain.tokenizers.fastokens_ids import FastokensIds, load_fastokens
from lmtrain.tokenizers.flat_ids import flatten
from tests.tokenizers import layouts

pytest.importorskip("fastokens")
TOKENIZER = train_byte_pairs([*layouts.TEXTS, *HARD_TEXTS, "12345 2024 99 100 "], vocab_size=600)
JSON = TOKENIZER._tokenizer.to_str()
TEXTS = ["in 2024 we had 1234567 of them", "", "none", "0123456789" * 9, "\u0378 123", "9"]


def ids_of(encoded):
    return encoded[0].tolist(), encoded[1].tolist()


@given(st.lists(st.text(st.characters(exclude_characters="\u180e", exclude_categories=["Cs"])), max_size=5))
@example(TEXTS)
@example([])
@settings(deadline=None, max_examples=20)
@pytest.mark.parametrize("cuts", [True, False])
def test_ids_are_those_of_tokenizers(cuts, texts):
    encode = load_fastokens(JSON, cuts=cuts)
    assert isinstance(encode, FastokensIds)
    assert encode.cuts is cuts
    assert ids_of(encode(texts)) == ids_of(flatten(TOKENIZER.encode_batch(texts)))


class Counting:
    """fastokens, and whether each text that it is given goes to its scanner."""

    def __init__(self):
        import fastokens

        self.Tokenizer, self.given, self._real = self, [], fastokens.Tokenizer

    def from_json_str(self, text):
        real, given = self._real.from_json_str(text), self.given

        class Encoder:
            def encode_batch_flat(self, texts, **settings):
                given.extend((one, "{1,3}" in text) for one in texts)
                return real.encode_batch_flat(texts, **settings)

        return Encoder()


def test_what_can_be_cut_goes_to_the_scanner_and_the_rest_to_the_expressions():
    module = Counting()
    FastokensIds(module, JSON, cuts=True)(TEXTS)
    assert sorted(module.given) == sorted(
        [(part, True) for part in ("in 20", "24 we had 12", "34", "56", "7 of them")]
        + [("", True), ("none", True), ("9", True), (TEXTS[3], False), (TEXTS[4], False)]
    )


def test_without_it_a_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert load_fastokens(JSON) == (
        "fastokens is not installed: tokenizers encodes, which is slower; pip install fastokens"
    )
