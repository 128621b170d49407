import json

from lmtrain.inference.loaded_model import ids_of_ends
from lmtrain.tokenizers.base import ChatTemplate
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.templates import read_template


def text_of(folder):
    found = read_template(folder)
    return found and found.text


def test_a_template_is_of_its_own_file_or_of_the_configuration(tmp_path):
    assert read_template(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": [{"name": "default", "template": "one"}]}))
    assert text_of(tmp_path) == "one"
    config.write_text(json.dumps({"chat_template": "two", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}))
    assert text_of(tmp_path) == "two"
    (tmp_path / "chat_template.jinja").write_text("three")
    assert text_of(tmp_path) == "three"
    assert read_template(tmp_path) == ChatTemplate("three", "<s>", "</s>")


def test_texts_end_as_the_tokenizer_and_the_folder_say(tmp_path):
    tokenizer = ByteLevelTokenizer(vocab_size=300, chat=True)
    assert ids_of_ends(tokenizer) == {256, tokenizer.special_tokens["<|assistant_end|>"]}
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert ids_of_ends(ByteLevelTokenizer(), tmp_path) == {256, 9}
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.5}))
    assert ids_of_ends(ByteLevelTokenizer(), tmp_path) == {256, 9}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert ids_of_ends(ByteLevelTokenizer(), tmp_path) == {256, 7, 8}
