import pytest

from lmtrain.errors import DataError
from lmtrain.tokenizers.conversation import ConversationError, ToolCall, Turn, read_conversation
from tests.tokenizers.conversations import SPOKEN, WITH_TOOLS

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
ANSWER = {"role": "assistant", "content": "a"}
CALLS = WITH_TOOLS[1]
RESULT = {"role": "tool", "content": "r"}


def test_turns_come_in_order_with_their_text():
    assert [(turn.role, turn.text) for turn in read_conversation(SPOKEN)] == [
        (message["role"], message["content"]) for message in SPOKEN
    ]


def test_tool_calls_are_read_in_either_form_with_arguments_as_mapping_or_json():
    calls = (ToolCall("weather", {"city": "Ulm"}), ToolCall("weather", {"city": "Bern"}))
    assert read_conversation(WITH_TOOLS)[1].calls == calls
    short = {**CALLS, "tool_calls": [call["function"] for call in CALLS["tool_calls"]]}
    assert read_conversation([USER, short, RESULT, RESULT])[1].calls == calls
    assert calls[0].as_json() == '{"name": "weather", "arguments": {"city": "Ulm"}}'


def test_content_may_be_parts_of_text_and_absent_beside_calls():
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    turns = read_conversation([{"role": "user", "content": parts}, {**CALLS, "content": None}])
    assert turns[0] == Turn("user", "a b")
    assert turns[1].text == ""


def test_columns_of_a_table_fill_missing_calls_with_nulls():
    rows = [{**message, "tool_calls": None} for message in SPOKEN]
    assert read_conversation(rows) == read_conversation(SPOKEN)


def test_a_conversation_may_end_before_the_answer():
    assert len(read_conversation([USER, ANSWER, USER])) == 3
    assert len(read_conversation([USER, CALLS])) == 2


@pytest.mark.parametrize(
    ("messages", "where", "rule"),
    [
        ([], "messages", "no list of messages"),
        ("text", "messages", "no list of messages"),
        (USER, "messages", "no list of messages"),
        (["text"], "messages[0]", "a message without keys"),
        ([{"content": "x"}], "messages[0] has role None", "unknown role"),
        ([{"role": "asistant", "content": "x"}], "messages[0] has role 'asistant'", "unknown role"),
        ([USER, {"role": "assistant", "content": 7}], "messages[1] (role assistant)", "content that is no text"),
        ([USER, {"role": "assistant"}], "messages[1] (role assistant)", "content that is no text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages[0] (role user)", "content that is no text"),
        ([{"role": "user", "content": " \n"}, ANSWER], "messages[0] (role user)", "empty content"),
        ([{"role": "user", "content": "a\udcff"}, ANSWER], "messages[0] (role user)", "content that is no Unicode"),
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
        ([USER, {**ANSWER, "tool_calls": [{"name": "f"}]}], "messages[1] (role assistant)", "malformed tool call"),
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


def test_a_role_that_is_nearly_right_is_suggested():
    with pytest.raises(ConversationError, match=r"valid: system, user, assistant, tool \(Did you mean 'assistant'\?\)"):
        read_conversation([{"role": "asistant", "content": "x"}])


@pytest.mark.parametrize("messages", [[USER], [USER, CALLS, RESULT, RESULT], [USER, ANSWER, USER], [SYSTEM, USER]])
def test_a_prompt_ends_where_an_answer_is_due(messages):
    assert read_conversation(messages, for_answer=True)


@pytest.mark.parametrize("messages", [[USER, ANSWER], [USER, CALLS], [USER, CALLS, RESULT], [SYSTEM]])
def test_a_prompt_without_anything_to_answer_is_refused(messages):
    with pytest.raises(ConversationError, match="nothing to answer"):
        read_conversation(messages, for_answer=True)
