import json
import os

import pytest

from lmtrain.errors import DataError
from lmtrain.tokenizers.bpe import BytePairTokenizer
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.number_cuts import SPLIT_EXPRESSION
from lmtrain.tokenizers.panics import HELD, held_output


def with_expression(expression: str, tmp_path) -> str:
    """Return the tokenizer.json of bytes, cut by an expression."""
    ByteLevelTokenizer(vocab_size=300).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}
    return json.dumps(content)


def test_an_expression_that_gives_up_is_one_line_at_the_start(tmp_path, capfd):
    with pytest.raises(DataError, match=r"^tokenizer.json cannot encode this text: .*retry-limit.*; use another"):
        BytePairTokenizer(with_expression("(?:a|a|ab)+c", tmp_path), end_of_text="<|end_of_text|>")
    assert capfd.readouterr().err == "", "a panic's own lines"


@pytest.mark.parametrize("way", ["encode", "encode_batch", "encode_batch_flat"])
def test_an_expression_that_gives_up_later_is_one_line_in_every_way_of_encoding(way, tmp_path, capfd):
    tokenizer = BytePairTokenizer(with_expression("(?:ж|ж|жщ)+ю", tmp_path), end_of_text="<|end_of_text|>")
    texts = ["ж" * 40, "a"]
    assert tokenizer.decode(tokenizer.encode("a жю")) == "a жю"
    with pytest.raises(DataError) as refusal:
        getattr(tokenizer, way)(texts[0] if way == "encode" else texts)
    assert "\n" not in str(refusal.value)
    assert "panicked" not in capfd.readouterr().err


def test_what_others_say_meanwhile_is_said_afterwards(capfd):
    with HELD, HELD:
        os.write(2, b"a line\n")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "a line\n"


def test_output_is_held_for_unknown_expressions_alone():
    steps = [{"type": "Split", "pattern": {"Regex": SPLIT_EXPRESSION}}]
    assert held_output({"pre_tokenizer": {"pretokenizers": steps}, "normalizer": None}) is None
    assert (
        held_output({"pre_tokenizer": None, "normalizer": {"normalizers": [{"pattern": {"Regex": "a"}}]}}) is not None
    )
