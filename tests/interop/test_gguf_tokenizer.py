import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.interop.gguf_tokenizer import CUTS, GPT_2, LLAMA_3, QWEN_2, split_expression
from lmtrain.tokenizers.number_cuts import SPLIT_EXPRESSION

BYTES = {"type": "ByteLevel", "use_regex": False}


def split(expression):
    return {"type": "Split", "pattern": {"Regex": expression}}


def test_the_expressions_of_published_tokenizers_have_their_names():
    """As in the tokenizer.json of Llama 3 and Qwen 2.5, letter for letter."""
    shared = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    shared = "(?i:'s|'t|'re|'ve|'m|'ll|'d)" + shared
    assert (shared % "{1,3}", shared % "") == (LLAMA_3, QWEN_2)
    assert CUTS == {LLAMA_3: "llama-bpe", QWEN_2: "qwen2", GPT_2: "gpt-2", SPLIT_EXPRESSION: "llama-bpe"}


def test_the_expression_is_read_from_each_form_and_other_cuts_are_refused():
    for content, expression in (
        ({"pre_tokenizer": {"type": "ByteLevel"}}, GPT_2),
        ({"pre_tokenizer": BYTES}, None),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("x"), BYTES]}}, "x"),
    ):
        assert split_expression(content) == expression
    for content in (
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("x"), split("y"), BYTES]}},
        {"pre_tokenizer": BYTES, "normalizer": {"type": "NFC"}},
    ):
        with pytest.raises(ConfigurationError, match="not of the byte-level kind"):
            split_expression(content)
