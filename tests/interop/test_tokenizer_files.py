"""AutoTokenizer of transformers reads our tokenizer's files, its chat template included, and gives the same ids."""

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtrain.errors import DataError
from lmtrain.interop.tokenizer_files import (
    end_ids,
    is_same_tokenizer,
    read_tokenizer,
    write_own_template,
    write_tokenizer,
)
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import STYLES, chat_style, render, render_prompt
from tests.tokenizers.conversations import byte_tokenizer

TEXTS = [
    "",
    "a",
    " Hello,  world!\n\n",
    "naïve café — 東京 🎉",
    "def f(x):\n\treturn x ** 2  # 1234567",
    "a\u0301\x00\x7f",
]
CORPUS = ["the cat sat on the mat. " * 20, "def f(x):\n    return x + 12345\n" * 10]


@pytest.fixture(scope="module", params=["byte_level", "bpe"])
def both(request, tmp_path_factory):
    from transformers import AutoTokenizer

    ours = (
        ByteLevelTokenizer(vocab_size=260)
        if request.param == "byte_level"
        else train_byte_pairs(CORPUS, vocab_size=320)
    )
    folder = tmp_path_factory.mktemp(request.param)
    write_tokenizer(ours, folder, max_context_tokens=64)
    return ours, AutoTokenizer.from_pretrained(folder), folder


@settings(max_examples=50, deadline=None)
@given(text=st.text().filter(lambda text: "<|" not in text))
def test_both_encode_any_text_alike(both, text):
    ours, theirs, _ = both
    assert theirs(text).input_ids == ours.encode(text)


def test_special_tokens_are_special(both):
    ours, theirs, _ = both
    assert theirs.eos_token_id == theirs.bos_token_id == ours.end_of_text_id
    assert theirs("<|end_of_text|>").input_ids == [ours.end_of_text_id]
    assert theirs.decode([ours.end_of_text_id, *ours.encode("hi")], skip_special_tokens=True) == "hi"
    assert theirs.model_max_length == 64


def test_the_tokenizer_comes_back(both):
    ours, _, folder = both
    again = read_tokenizer(folder)
    assert again.end_of_text_id == ours.end_of_text_id
    assert all(again.encode(text) == ours.encode(text) for text in TEXTS)
    assert is_same_tokenizer(again, folder)


def test_a_tokenizer_of_another_kind_is_refused_with_the_way_around(both, tmp_path):
    content = json.loads((both[2] / "tokenizer.json").read_text())
    content["model"]["vocab"]["東"] = 999
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end_of_text|>"}))
    with pytest.raises(DataError, match=r"not byte-level.*--without-tokenizer"):
        read_tokenizer(tmp_path)


MESSAGES = [
    {"role": "system", "content": "Be  brief.\n"},
    {"role": "user", "content": " {{ Héllo }} <b>"},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "And\nnow?"},
]


TOKENIZERS = {
    "own": lambda: ByteLevelTokenizer(vocab_size=300, chat=True),
    **{style.name: partial(byte_tokenizer, style.name) for style in STYLES},
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def chatting(request, tmp_path_factory):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("chat")
    ours = TOKENIZERS[request.param]()
    write_tokenizer(ours, folder, max_context_tokens=64)
    return ours, AutoTokenizer.from_pretrained(folder), folder


def test_a_prompt_is_rendered_to_the_same_ids(chatting):
    ours, theirs, _ = chatting
    ids = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert ids == [ours.end_of_text_id, *render_prompt(ours, MESSAGES).tolist()]


def test_a_whole_conversation_is_rendered_to_the_same_ids(chatting):
    ours, theirs, _ = chatting
    ids = theirs.apply_chat_template(MESSAGES[:3], return_dict=False)
    assert ids == [ours.end_of_text_id, *render(ours, MESSAGES[:3])[0].tolist()]


@pytest.mark.parametrize("style", [style.name for style in STYLES])
def test_a_tuned_folder_has_the_template_of_its_training(style, tmp_path):
    """Where the import's own adds a system prompt, as Qwen's, and has no token at the beginning."""
    from transformers import AutoTokenizer

    ours = byte_tokenizer(style)
    write_tokenizer(ours, tmp_path, max_context_tokens=64)
    (tmp_path / "chat_template.jinja").write_text("You are a helpful assistant.")
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bos_token": None, "chat_template": "x"}))
    write_own_template(ours, tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ids = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert ids == [ours.end_of_text_id, *render_prompt(ours, MESSAGES).tolist()]


def test_tool_calls_are_refused_rather_than_forgotten(chatting):
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    with pytest.raises(Exception, match="this template writes no tool calls"):
        chatting[1].apply_chat_template([*MESSAGES, message])


def test_generation_stops_at_the_end_of_an_answer(chatting):
    ours, _, folder = chatting
    ends = [ours.end_of_text_id, ours.special_tokens[chat_style(ours).end]]
    assert end_ids(ours) == ends
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == ends
