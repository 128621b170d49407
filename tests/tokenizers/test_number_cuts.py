import json
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.fast_encoder import HARD_TEXTS
from lmtrain.tokenizers.number_cuts import IN_THREES, SPLIT_EXPRESSION, cut_numbers, ends_of_texts, in_threes

IN_PAIRS_OF = {
    name: pre_tokenizers.Split(Regex(expression), "isolated")
    for name, expression in (("pairs", SPLIT_EXPRESSION), ("threes", IN_THREES))
}
NUMBERS = [chr(code) for code in range(0x33480) if unicodedata.category(chr(code)).startswith("N")]
CONTENT = json.loads(train_byte_pairs(["some text 12"], vocab_size=300)._tokenizer.to_str())


def split(name, text):
    return [piece for piece, _ in IN_PAIRS_OF[name].pre_tokenize_str(text)]


def split_in_parts(text):
    parts = cut_numbers(text)
    return split("pairs", text) if parts is None else [piece for part in parts for piece in split("threes", part)]


@given(st.text(st.sampled_from("0123456789 \n\r\tab'sSlL.-=\u00b2\u0663\u4e00\u00e9\u2003\U0001d7d8\U0001f600\u017f")))
@example("1234567 12 123  1234\n\n 12345.6789")
@example("  123")
def test_parts_in_threes_are_the_text_in_pairs(text):
    assert split_in_parts(text) == split("pairs", text)


@pytest.mark.parametrize(
    "shape", ["{0}{0}{0}", " {0}{0}{0}{0} ", "a{0}12{0}3", "12{0}{0}\n{0}{0}{0}{0}{0}", "  {0}1{0}"]
)
def test_every_number_of_unicode_is_cut_as_the_split_expression_cuts_it(shape):
    text = "\u00e9".join(shape.format(number) for number in NUMBERS)
    for start in range(0, len(text), 2000):
        # Without the bound on cuts: so dense a text would go to the regular expressions.
        piece = text[start : start + 2000] + "x" * 64_000
        assert cut_numbers(piece) is not None
        assert split_in_parts(piece) == split("pairs", piece)


def test_every_hard_text_is_cut_alike():
    for text in HARD_TEXTS:
        assert split_in_parts(text) == split("pairs", text)


def test_parts_are_the_text_and_hold_no_more_than_two_digits_at_an_end():
    text = "in 2024 and 1999, or 12 of 123456 " + "words " * 40
    parts = cut_numbers(text)
    assert parts is not None
    assert "".join(parts) == text
    assert len(parts) == 5
    assert not any(re.search(r"\d{3}", part) for part in parts)


def test_a_text_without_a_long_number_is_itself():
    text = "12 in 34"
    assert cut_numbers(text) == [text]
    assert cut_numbers("") == [""]


@pytest.mark.parametrize("text", ["0123456789" * 10, "\u0378 not assigned", "it'\u017f", "private \ue000"])
def test_texts_of_numbers_alone_or_with_unknown_characters_are_not_cut(text):
    assert cut_numbers(text) is None


def test_the_ids_of_a_text_end_with_those_of_its_last_part():
    assert ends_of_texts(np.array([2, 5, 5, 9]), [1, 2, 1]).tolist() == [2, 5, 9]


def test_only_the_digits_of_the_expression_change():
    made = in_threes(CONTENT)
    assert made is not None
    assert json.dumps(made).replace(json.dumps(IN_THREES), json.dumps(SPLIT_EXPRESSION)) == json.dumps(CONTENT)


@pytest.mark.parametrize(
    "changed",
    [
        {"normalizer": {"type": "NFC"}},
        {"added_tokens": [*CONTENT["added_tokens"], {"id": 299, "content": "123", "special": False}]},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}},
        {"pre_tokenizer": None},
    ],
)
def test_any_other_file_is_left_alone(changed):
    assert in_threes({**CONTENT, **changed}) is None
