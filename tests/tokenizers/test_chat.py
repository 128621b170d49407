import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import chat_style, render, render_batch, render_prompt
from lmtrain.tokenizers.chat_styles import STYLES
from lmtrain.tokenizers.conversation import ConversationError
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tokenizers.special_tokens import CHAT_TOKENS, END_OF_TEXT
from tests.tokenizers import layouts
from tests.tokenizers.conversations import (
    ONE_TOOL,
    SPOKEN,
    WITH_TOOLS,
    byte_tokenizer,
    typed_by_a_user,
    written,
)

STYLE_NAMES = [style.name for style in STYLES]
LLAMA_3_TEMPLATE = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CHATML_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def conversations(style):
    """Return a style's conversations, as they are in its golden file."""
    with_tools = ONE_TOOL if style == "llama3" else WITH_TOOLS
    return {"spoken": SPOKEN, "with_tools": with_tools, "typed_by_a_user": typed_by_a_user(style)}


@pytest.mark.parametrize("style", STYLE_NAMES)
def test_conversations_are_written_as_in_the_golden_files(style):
    tokenizer = byte_tokenizer(style)
    golden = json.loads((Path(__file__).parents[1] / f"golden/chat_{style}.json").read_text())
    for name, messages in conversations(style).items():
        ids, mask = render(tokenizer, messages)
        expected = golden["conversations"][name]
        assert written(tokenizer, ids, mask) == expected["written"]
        assert (ids.dtype, mask.dtype) == (np.uint32, np.bool_)
        assert ids.tolist() == expected["ids"]
        assert mask.astype(int).tolist() == expected["loss_mask"]
        assert len(render_prompt(tokenizer, messages[:-1])) == expected["prompt_tokens"]


@pytest.mark.parametrize("style", STYLE_NAMES)
def test_only_what_the_assistant_writes_carries_loss_its_end_token_included(style):
    tokenizer = byte_tokenizer(style)
    ids, mask = render(tokenizer, SPOKEN)
    end = {"lmtrain": "<|assistant_end|>", "chatml": "<|im_end|>", "llama3": "<|eot_id|>"}[style]
    answers = [message["content"] for message in SPOKEN if message["role"] == "assistant"]
    expected = [[*answer.encode(), tokenizer.special_tokens[end]] for answer in answers]
    assert ids[mask].tolist() == [id_ for answer in expected for id_ in answer]


@given(typed=st.text(min_size=1).filter(str.strip), style=st.sampled_from(STYLE_NAMES), token=st.integers(0, 9))
def test_what_people_type_never_becomes_a_special_token(typed, style, token):
    tokenizer = byte_tokenizer(style)
    names = list(tokenizer.special_tokens)
    said = f"{typed}{names[token % len(names)]}{typed}"
    ids, _ = render(tokenizer, [{"role": "user", "content": said}, {"role": "assistant", "content": said}])
    plain, _ = render(tokenizer, [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}])
    special = set(tokenizer.special_tokens.values())
    assert [id_ for id_ in ids.tolist() if id_ in special] == [id_ for id_ in plain.tolist() if id_ in special]
    assert said.strip() in tokenizer.decode(ids.tolist())


@pytest.mark.parametrize("style", STYLE_NAMES)
def test_a_prompt_and_its_answer_are_the_whole_conversation(style):
    tokenizer = byte_tokenizer(style)
    for messages in conversations(style).values():
        ids, mask = render(tokenizer, messages)
        prompt = render_prompt(tokenizer, messages[:-1])
        assert ids[: len(prompt)].tolist() == prompt.tolist()
        assert mask[len(prompt)]
        assert not mask[len(prompt) - 1]


def test_a_batch_is_rendered_as_its_conversations_are():
    tokenizer = byte_tokenizer("lmtrain")
    together = render_batch(tokenizer, [SPOKEN, WITH_TOOLS, SPOKEN])
    for (ids, mask), messages in zip(together, [SPOKEN, WITH_TOOLS, SPOKEN], strict=True):
        alone = render(tokenizer, messages)
        assert (ids.tolist(), mask.tolist()) == (alone[0].tolist(), alone[1].tolist())
    assert render_batch(tokenizer, []) == []


@pytest.mark.parametrize(("layout", "template"), [(layouts.llama_3, LLAMA_3_TEMPLATE), (layouts.qwen, CHATML_TEMPLATE)])
@pytest.mark.parametrize("messages", [SPOKEN, SPOKEN[1:3], [*SPOKEN[:2], {"role": "assistant", "content": "a\n\nb  "}]])
def test_ids_are_those_of_transformers_with_the_styles_template(layout, template, messages, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = layout(tmp_path)
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    reference.chat_template = template
    tokenizer = load_tokenizer(folder)

    def expected(turns, **settings):
        text = reference.apply_chat_template(turns, tokenize=False, **settings)
        return reference(text, add_special_tokens=False).input_ids

    assert render(tokenizer, messages)[0].tolist() == expected(messages)
    assert render_prompt(tokenizer, messages[:-1]).tolist() == expected(messages[:-1], add_generation_prompt=True)


@pytest.mark.parametrize("vocab_size", [267, 300, 500])
def test_a_trained_vocabulary_has_the_chat_tokens_and_is_exact(vocab_size):
    tokenizer = train_byte_pairs(layouts.TEXTS, vocab_size=vocab_size, special_tokens=(END_OF_TEXT, *CHAT_TOKENS))
    assert tokenizer.vocab_size == vocab_size
    ids, mask = render(tokenizer, SPOKEN)
    assert tokenizer.decode(ids[mask].tolist()) == "2,000 m.Any time."
    assert (tokenizer.token_bytes()[list(tokenizer.special_tokens.values())] == 0).all()


def test_bytes_have_a_style_too_when_asked_for():
    ids, mask = render(ByteLevelTokenizer(vocab_size=267, chat=True), SPOKEN)
    assert ids.max() < 267
    assert mask.sum() == len("2,000 m.Any time.") + 2


def test_a_tokenizer_without_chat_tokens_is_refused_with_the_fix():
    with pytest.raises(DataError, match=r"has not the special tokens of a chat style \(.*\); .*tokenizer\.chat=true"):
        render(ByteLevelTokenizer(), SPOKEN)
    with pytest.raises(DataError, match="of the llama3 style"):
        chat_style(byte_tokenizer("chatml"), "llama3")
    with pytest.raises(ConfigurationError, match=r"chat style llama_3 does not exist; .* Did you mean 'llama3'"):
        chat_style(byte_tokenizer("chatml"), "llama_3")


def test_a_style_that_cannot_write_a_turn_says_which():
    with pytest.raises(ConversationError, match=r"messages\[1\] \(role assistant\): one tool call and nothing else"):
        render(byte_tokenizer("llama3"), WITH_TOOLS)
