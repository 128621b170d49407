"""Conversations as ids and a loss mask, and what is not a conversation."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.errors import DataError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import STYLES, render, render_prompt
from lmtrain.tokenizers.conversation import ConversationError, ToolCall, read_conversation
from lmtrain.tokenizers.loading import load_tokenizer
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


def test_a_tokenizer_without_chat_tokens_is_refused_with_the_fix():
    with pytest.raises(DataError, match=r"lacks the special tokens of a chat style \(.*\); .*tokenizer\.chat=true"):
        render(ByteLevelTokenizer(), SPOKEN)


SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
ANSWER = {"role": "assistant", "content": "a"}
CALLS = WITH_TOOLS[1]
RESULT = {"role": "tool", "content": "r"}


def test_tool_calls_are_read_in_either_form_with_arguments_as_mapping_or_json():
    calls = (ToolCall("weather", {"city": "Ulm"}), ToolCall("weather", {"city": "Bern"}))
    assert read_conversation(WITH_TOOLS)[1].calls == calls
    short = {**CALLS, "tool_calls": [call["function"] for call in CALLS["tool_calls"]]}
    assert read_conversation([USER, short, RESULT, RESULT])[1].calls == calls
    assert calls[0].as_json() == '{"name": "weather", "arguments": {"city": "Ulm"}}'


def test_older_and_newer_forms_of_messages_are_read():
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}
    messages = [{"role": "developer", "content": "s"}, USER, called, {**RESULT, "role": "function", "name": "f"}]
    turns = read_conversation(messages)
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "tool"]
    assert turns[2].calls == (ToolCall("f", {}),)
    assert read_conversation([{**SYSTEM, "content": " "}, USER, ANSWER])[0].role == "user"


@pytest.mark.parametrize("style", [style.name for style in STYLES])
@pytest.mark.parametrize("key", ["weight", "train"])
def test_a_turn_without_weight_is_written_and_not_learned(style, key):
    tokenizer = byte_tokenizer(style)
    excluded = [USER, {**ANSWER, key: 0}, USER, ANSWER]
    ids, mask = render(tokenizer, excluded)
    plain, both = render(tokenizer, [USER, ANSWER, USER, ANSWER])
    assert ids.tolist() == plain.tolist()
    assert 0 < mask.sum() * 2 == both.sum()


@pytest.mark.parametrize(
    ("messages", "where", "rule"),
    [
        ([], "messages", "not a list of messages"),
        ("text", "messages", "not a list of messages"),
        (USER, "messages", "not a list of messages"),
        (["text"], "messages[0]", "a message without keys"),
        ([{"content": "x"}], "messages[0] has role None", "unknown role"),
        ([{"role": "asistant", "content": "x"}], "messages[0] has role 'asistant'", "unknown role"),
        ([USER, {"role": "assistant", "content": 7}], "messages[1] (role assistant)", "content that is not text"),
        ([USER, {"role": "assistant"}], "messages[1] (role assistant)", "content that is not text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages[0] (role user)", "content that is not text"),
        ([{"role": "user", "content": " \n"}, ANSWER], "messages[0] (role user)", "empty content"),
        ([{"role": "user", "content": "a\udcff"}, ANSWER], "messages[0] (role user)", "content that is not Unicode"),
        ([USER, SYSTEM], "messages[1] (role system)", "system turn after the start"),
        ([SYSTEM, SYSTEM], "messages[1] (role system)", "system turn after the start"),
        ([USER, USER], "messages[1] (role user)", "two user turns in a row"),
        ([USER, ANSWER, ANSWER], "messages[2] (role assistant)", "two assistant turns in a row"),
        ([ANSWER], "messages[0] (role assistant)", "assistant turn before any user turn"),
        ([SYSTEM, ANSWER], "messages[1] (role assistant)", "assistant turn before any user turn"),
        ([USER, RESULT], "messages[1] (role tool)", "tool turn without a call"),
        ([RESULT], "messages[0] (role tool)", "tool turn without a call"),
        ([USER, ANSWER, RESULT], "messages[2] (role tool)", "tool turn without a call"),
        ([USER, CALLS, RESULT, RESULT, RESULT], "messages[4] (role tool)", "tool turn without a call"),
        ([USER, CALLS, ANSWER], "messages[2] (role assistant)", "unanswered tool call"),
        ([USER, CALLS, RESULT, ANSWER], "messages[3] (role assistant)", "unanswered tool call"),
        ([{**USER, "tool_calls": CALLS["tool_calls"]}], "messages[0] (role user)", "tool calls outside"),
        ([USER, {**ANSWER, "tool_calls": "f()"}], "messages[1] (role assistant)", "malformed tool call"),
        ([USER, {**ANSWER, "tool_calls": [{"arguments": {}}]}], "messages[1] (role assistant)", "malformed tool call"),
        ([USER, {**ANSWER, "weight": 0.5}], "messages[1] (role assistant)", "a weight other than 0 and 1"),
        (
            [USER, {**ANSWER, "tool_calls": [{"name": "f", "arguments": "{"}]}],
            "messages[1] (role assistant)",
            "malformed tool call",
        ),
        ([SYSTEM, USER], "messages", "no assistant turn"),
    ],
)
def test_what_is_no_conversation_is_refused_with_message_role_and_rule(messages, where, rule):
    with pytest.raises(ConversationError) as refusal:
        read_conversation(messages)
    assert isinstance(refusal.value, DataError)
    assert refusal.value.exit_code == 4
    assert str(refusal.value).startswith(f"{where}: ")
    assert rule in refusal.value.rule
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize("messages", [[USER, ANSWER], [USER, CALLS], [USER, CALLS, RESULT], [SYSTEM]])
def test_a_prompt_without_anything_to_answer_is_refused(messages):
    with pytest.raises(ConversationError, match="nothing to answer"):
        read_conversation(messages, for_answer=True)
