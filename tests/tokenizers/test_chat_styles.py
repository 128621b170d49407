import pytest

from lmtrain.tokenizers.chat_styles import STYLES
from lmtrain.tokenizers.conversation import read_conversation
from tests.tokenizers.conversations import ONE_TOOL, SPOKEN


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
@pytest.mark.parametrize("messages", [SPOKEN, ONE_TOOL])
def test_a_style_writes_only_its_own_special_tokens_and_every_turn(style, messages):
    segments = list(style.write(read_conversation(messages)))
    assert {segment.text for segment in segments if segment.is_special} <= set(style.special_tokens)
    text = "".join(segment.text for segment in segments)
    assert all(message["content"] in text for message in messages if message["content"])


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_what_stands_before_an_answer_is_what_every_answer_begins_with(style):
    segments = list(style.write(read_conversation(SPOKEN)))
    first_loss = next(index for index, segment in enumerate(segments) if segment.has_loss)
    assert tuple(segments[first_loss - len(style.answer) : first_loss]) == style.answer
    assert not any(segment.has_loss for segment in style.answer)


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_white_space_around_an_answer_does_not_move_its_start(style):
    turns = read_conversation([*SPOKEN[:2], {"role": "assistant", "content": "\n answer "}])
    answer = [segment.text for segment in style.write(turns) if segment.has_loss and not segment.is_special]
    assert [text.strip() for text in answer] == ["answer"]
