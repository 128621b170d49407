import json

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from lmtrain.errors import ConfigurationError
from lmtrain.interop.gguf_tokenizer import CUTS, GPT_2, LLAMA_3, QWEN_2, add_tokenizer, split_expression
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
        ({"pre_tokenizer": BYTES, "normalizer": {"type": "NFC"}}, None),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("x"), BYTES]}}, "x"),
    ):
        assert split_expression(content) == expression
    for content in (
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("x"), split("y"), BYTES]}},
        {"pre_tokenizer": BYTES, "normalizer": {"type": "Lowercase"}},
    ):
        with pytest.raises(ConfigurationError, match="not of the byte-level kind"):
            split_expression(content)


TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {}}]}


@pytest.mark.parametrize(
    ("step", "begins"),
    [
        (TEMPLATE, True),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}, True),  # as Llama 3's
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}]}, False),
        (TEMPLATE | {"single": TEMPLATE["single"][::-1]}, False),  # a token behind the text
    ],
)
def test_a_token_before_each_text_is_found_wherever_it_is_written(step, begins, tmp_path):
    gguf = pytest.importorskip("gguf")
    tokenizer = Tokenizer(BPE({byte: id_ for id_, byte in enumerate(["<s>", *ByteLevel.alphabet()])}, []))
    tokenizer.pre_tokenizer = ByteLevel()
    content = json.loads(tokenizer.to_str()) | {"post_processor": step}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    writer = gguf.GGUFWriter(None, "llama")
    add_tokenizer(writer, tmp_path, num_ids=257)
    assert writer.kv_data[0]["tokenizer.ggml.add_bos_token"].value is begins
