import numpy as np
import pytest

from data_pipelines.sources.base import REJECTED, Document, Skipped
from data_pipelines.stages.render import WholeConversations, render_documents
from lmtrain.errors import DataError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import render
from lmtrain.tokenizers.conversation import ConversationError

TOKENIZER = ByteLevelTokenizer(vocab_size=270, chat=True)
TALK = ({"role": "user", "content": "u"}, {"role": "assistant", "content": "answer"})


def test_texts_are_encoded_without_a_mask():
    rendered = render_documents([Document("a", "one"), Document("b", "")], TOKENIZER)
    assert rendered.ids.tolist() == list(b"one")
    assert rendered.ends.tolist() == [3, 3]
    assert rendered.loss_mask is None


def test_conversations_keep_their_place_among_texts_which_carry_loss_throughout():
    documents = [Document("a", "one"), Document("t", "", messages=TALK), Document("b", "two"), Document("c", "3")]
    rendered = render_documents(documents, TOKENIZER)
    ids, mask = render(TOKENIZER, TALK)
    assert rendered.ids.tolist() == [*b"one", *ids.tolist(), *b"two3"]
    assert rendered.ends.tolist() == [3, 3 + len(ids), 6 + len(ids), 7 + len(ids)]
    assert rendered.loss_mask is not None
    assert rendered.loss_mask.tolist() == [True] * 3 + mask.tolist() + [True] * 4
    assert rendered.loss_mask.dtype == np.bool_


def test_conversations_alone_need_no_text():
    rendered = render_documents([Document("t", "", messages=TALK)] * 2, TOKENIZER)
    ids, mask = render(TOKENIZER, TALK)
    assert rendered.ids.tolist() == ids.tolist() * 2
    assert rendered.loss_mask is not None
    assert rendered.loss_mask.tolist() == mask.tolist() * 2


def test_conversations_need_a_tokenizer_with_chat_tokens():
    with pytest.raises(DataError, match=r"tokenizer\.chat=true"):
        render_documents([Document("t", "", messages=TALK)], ByteLevelTokenizer())


CALL = {"name": "w", "arguments": {"c": "Ulm"}}
TOGETHER = {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]}
CALLED = (TALK[0], TOGETHER, {"role": "tool", "content": "rain"}, TALK[1])


def test_a_styles_own_rules_skip_a_conversation_and_either_answer_of_a_pair():
    pair = (*TALK[:1], {**TALK[1], REJECTED: [TOGETHER]})
    items = [Document("t", "", messages=TALK), Document("u", "", messages=CALLED), Document("v", "", messages=pair)]
    for style in (None, "lmtrain", "chatml"):
        assert list(WholeConversations(style=style)(items)) == items
    rule = "messages: one tool call and nothing else a turn in the llama3 style"
    assert list(WholeConversations(style="llama3")(items)) == [items[0], Skipped("u", rule), Skipped("v", rule)]
    assert WholeConversations(style="llama3").fingerprint_parts() == WholeConversations().fingerprint_parts()


def test_what_is_no_conversation_is_skipped_by_its_rule_and_the_rest_passes():
    items = [
        Document("a", "text"),
        Document("t", "", messages=TALK),
        Document("u", "", messages=(TALK[0], TALK[0])),
        Document("v", "", messages=()),
        Document("w", "", messages=({"from": "human"},)),
        Skipped("x", "not JSON"),
    ]
    skipped = [item for item in WholeConversations()(items) if isinstance(item, Skipped)]
    assert skipped == [
        Skipped("u", "messages: two user turns in a row"),
        Skipped("v", "messages: no list of messages"),
        Skipped("w", "messages: unknown role"),
        Skipped("x", "not JSON"),
    ]
    assert list(WholeConversations()(items))[:2] == items[:2]
    assert WholeConversations().scope == "document"
    with pytest.raises(ConversationError):
        render_documents([items[2]], TOKENIZER)
