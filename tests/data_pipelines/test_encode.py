"""Documents to ids and loss marks, and blocks to shards."""

import numpy as np
import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.encode import WholeConversations, encode_documents, load_encoded, text_sha256_of
from data_pipelines.stages.split import SPLITS
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import render
from lmtrain.tokenizers.conversation import ConversationError

TALK = ({"role": "user", "content": "what?"}, {"role": "assistant", "content": "that"})
DOCUMENTS = [Document("0", "zero", split="train"), Document("1", "ä", split="test"), Document("2", "", split="train"),
             Document("3", "<|end_of_text|>", split="train")]  # fmt: skip
CHAT = ByteLevelTokenizer(vocab_size=300, chat=True)


def test_each_document_is_its_ids_and_end_of_text_in_its_split():
    encoded = encode_documents(DOCUMENTS, ByteLevelTokenizer(), dtype="uint16")
    assert encoded.ids.tolist() == [*b"zero", 256, *"ä".encode(), 256, 256, *b"<|end_of_text|>", 256]
    assert encoded.ends.tolist() == [5, 8, 9, 25]
    assert encoded.text_bytes.tolist() == [4, 2, 0, 15]
    assert [SPLITS[split] for split in encoded.splits] == ["train", "test", "train", "train"]
    assert (encoded.ids.dtype, encoded.loss_mask) == (np.dtype("uint16"), None)
    some = encoded.select(np.array([False, True, False, True]))
    assert some.ids.tolist() == [*"ä".encode(), 256, *b"<|end_of_text|>", 256]
    assert (some.ends.tolist(), some.places.tolist()) == ([3, 19], [1, 3])


def test_a_conversation_has_a_loss_mask_and_a_text_beside_it_carries_loss_throughout():
    documents = [Document("a", "one"), Document("t", "", messages=TALK), Document("b", "two")]
    encoded = encode_documents(documents, CHAT)
    ids, mask = render(CHAT, TALK)
    assert encoded.ids.tolist() == [*b"one", 256, *ids.tolist(), 256, *b"two", 256]
    assert encoded.loss_mask is not None
    assert encoded.loss_mask.tolist() == [1] * 4 + mask.astype(int).tolist() + [0] + [1] * 4
    assert encoded.text_bytes.tolist() == [3, sum(id_ < 256 for id_ in ids.tolist()), 3]


def test_of_a_pair_both_answers_alone_carry_loss():
    first, answer = TALK
    pair = Document("p", "", messages=(first, *TALK[1:], first, {**answer, "rejected": [{**answer, "content": "no"}]}))
    encoded = encode_documents([pair], CHAT)
    assert encoded.places.tolist() == [0, 0]
    learned = [encoded.select(np.arange(2) == number) for number in range(2)]
    marked = [one.ids[np.asarray(one.loss_mask, bool)].tolist() for one in learned]
    end = CHAT.special_tokens["<|assistant_end|>"]
    assert marked == [[*b"that", end], [*b"no", end]]


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-1], lambda c: b"", lambda c: c[:90] + bytes([c[90] ^ 1]) + c[91:], lambda c: b"{}\n"]
)
def test_a_damaged_block_is_not_there(tmp_path, damage):
    path = tmp_path / "block"
    encoded = encode_documents([*DOCUMENTS, Document("c", "", messages=TALK)], CHAT)
    encoded.save(path, text_sha256="x")
    assert text_sha256_of(path) == "x"
    assert all(np.array_equal(value, vars(encoded)[name]) for name, value in vars(load_encoded(path)).items())
    path.write_bytes(damage(path.read_bytes()))
    assert text_sha256_of(path) is None
    path.unlink()
    assert text_sha256_of(path) is None


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
        Skipped("v", "messages: not a list of messages"),
        Skipped("w", "messages: unknown role"),
        Skipped("x", "not JSON"),
    ]
    assert list(WholeConversations()(items))[:2] == items[:2]
    with pytest.raises(ConversationError):
        encode_documents([items[2]], CHAT)
