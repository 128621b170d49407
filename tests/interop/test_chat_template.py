"""What transformers renders through the template are the ids that our own rendering gives."""

import json
from functools import partial

import pytest

from lmtrain.interop.chat_template import chat_template, end_ids
from lmtrain.interop.tokenizer_files import write_tokenizer
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import chat_style, render, render_prompt
from lmtrain.tokenizers.chat_styles import STYLES
from tests.tokenizers.conversations import byte_tokenizer

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
def both(request, tmp_path_factory):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("chat")
    ours = TOKENIZERS[request.param]()
    write_tokenizer(ours, folder, max_context_tokens=64)
    return ours, AutoTokenizer.from_pretrained(folder), folder


def test_a_prompt_is_rendered_to_the_same_ids(both):
    ours, theirs, _ = both
    ids = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert ids == [ours.end_of_text_id, *render_prompt(ours, MESSAGES).tolist()]


def test_a_whole_conversation_is_rendered_to_the_same_ids(both):
    ours, theirs, _ = both
    ids = theirs.apply_chat_template(MESSAGES[:3], return_dict=False)
    assert ids == [ours.end_of_text_id, *render(ours, MESSAGES[:3])[0].tolist()]


def test_tool_calls_are_refused_rather_than_forgotten(both):
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    with pytest.raises(Exception, match="this template writes no tool calls"):
        both[1].apply_chat_template([*MESSAGES, message])


def test_generation_stops_at_the_end_of_an_answer(both):
    ours, _, folder = both
    ends = [ours.end_of_text_id, ours.special_tokens[chat_style(ours).end]]
    assert end_ids(ours) == ends
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == ends


def test_a_tokenizer_without_chat_tokens_has_no_template(tmp_path):
    tokenizer = ByteLevelTokenizer(vocab_size=257)
    write_tokenizer(tokenizer, tmp_path, max_context_tokens=64)
    assert chat_template(tokenizer) is None
    assert not (tmp_path / "chat_template.jinja").exists()
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 256
