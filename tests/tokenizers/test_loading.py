import json

import pytest

from lmtrain.errors import DataError
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from tests.tokenizers import layouts


@pytest.fixture
def foreign(tmp_path):
    """A folder with a tokenizer.json alone, as Hugging Face models have."""
    train_byte_pairs(["text"], vocab_size=300, special_tokens=("<|endoftext|>", "<|user|>")).save(tmp_path)
    (tmp_path / "tokenizer.meta.json").unlink()
    return tmp_path


@pytest.mark.parametrize(
    "tokenizer",
    [
        ByteLevelTokenizer(),
        ByteLevelTokenizer(vocab_size=300, chat=True),
        train_byte_pairs(["one text"], vocab_size=260),
    ],
)
def test_each_kind_reads_back_as_itself(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert type(again) is type(tokenizer)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.end_of_text_id == tokenizer.end_of_text_id


def test_a_foreign_file_is_searched_for_the_usual_end_of_text(foreign):
    assert load_tokenizer(foreign).end_of_text_id == 0
    assert load_tokenizer(foreign, end_of_text="<|user|>").end_of_text_id == 1


def test_an_unusual_end_of_text_has_to_be_named(foreign):
    path = foreign / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|strange|>"))
    with pytest.raises(DataError, match=r"tokenizer\.end_of_text is not set .*: <\|strange\|>, <\|user\|>"):
        load_tokenizer(foreign)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path / "nowhere")


def test_a_damaged_file_is_refused(foreign):
    path = foreign / "tokenizer.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(DataError, match="is damaged"):
        load_tokenizer(foreign)
    path.write_text(json.dumps([]))
    with pytest.raises(DataError):
        load_tokenizer(foreign)


@pytest.mark.parametrize(
    ("make", "end"),
    [
        (layouts.gpt2, "<|endoftext|>"),
        (layouts.llama_3, "<|end_of_text|>"),  # though its configuration names the end of a turn
        (layouts.qwen, "<|endoftext|>"),
        (layouts.llama_2, "</s>"),
    ],
)
def test_the_end_of_a_document_is_found_in_every_layout_of_the_hub(make, end, tmp_path):
    folder = make(tmp_path)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.end_of_text_id == tokenizer.special_tokens[end]
    assert load_tokenizer(folder / "tokenizer.json").fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("eos", ["<|my_end|>", {"content": "<|my_end|>"}])
def test_a_models_configuration_names_an_unusual_end(eos, tmp_path):
    folder = layouts.write(tmp_path, layouts.byte_level(None, ("<|other|>", "<|my_end|>")), eos=eos)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.end_of_text_id == tokenizer.special_tokens["<|my_end|>"]


def test_older_files_are_answered_with_how_to_convert_them(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(DataError, match=r"has no tokenizer\.json; it has vocab\.json, from which .*save_pretrained"):
        load_tokenizer(tmp_path)
