"""Documents to ids and loss marks, blocks to shards, and tokenizers learned on the way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages import blocks as spool_module
from data_pipelines.stages.append import Shards
from data_pipelines.stages.blocks import cut_into_blocks, load_block
from data_pipelines.stages.encode import (
    Encoded,
    WholeConversations,
    encode_block,
    render_documents,
    save_encoded,
    text_sha256_of,
)
from data_pipelines.stages.encoders import Encoders
from data_pipelines.stages.train_tokenizer import ByteLevelSpec, BytePairSpec, hold_blocks, learn
from data_pipelines.work_folder import WorkFolder
from lmtrain.data.shards import TokenSplit
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.bpe import train_byte_pairs
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.chat import render
from lmtrain.tokenizers.conversation import ConversationError
from tests.data_pipelines.poems import Recorder

CHAT = ({"role": "user", "content": "what?"}, {"role": "assistant", "content": "that"})
DOCUMENTS = [("train", Document("0", "zero")), ("test", Document("1", "ä")), ("train", Document("2", "")),
             ("train", Document("3", "<|end_of_text|>"))]  # fmt: skip


def block_of(documents):
    return next(cut_into_blocks(documents))


def test_each_document_is_its_ids_and_end_of_text_in_its_split():
    encoded = encode_block(block_of(DOCUMENTS), ByteLevelTokenizer(), dtype="uint16")
    train, test = encoded["train"], encoded["test"]
    assert train.ids.tolist() == [*b"zero", 256, 256, *b"<|end_of_text|>", 256]
    assert train.ends.tolist() == [5, 6, 22]
    assert (train.text_bytes.tolist(), train.places.tolist()) == ([4, 0, 15], [0, 2, 3])
    assert test.ids.tolist() == [*"ä".encode(), 256]
    assert (train.ids.dtype, train.loss_mask, set(encoded)) == (np.dtype("uint16"), None, {"train", "test"})


def test_a_conversation_has_a_loss_mask_and_a_text_beside_it_carries_loss_throughout():
    tokenizer = ByteLevelTokenizer(vocab_size=300, chat=True)
    documents = [("train", Document("t", "text")), ("train", Document("c", "", messages=CHAT))]
    train = encode_block(block_of(documents), tokenizer, dtype="uint16")["train"]
    assert train.loss_mask is not None
    first, second = train.loss_mask[: train.ends[0]], train.loss_mask[train.ends[0] :]
    ids = train.ids[train.ends[0] :]
    assert first.tolist() == [1] * 5
    assert len(second) == len(ids) > 9
    assert second[-1] == 0
    assert bytes(int(id_) for id_, marked in zip(ids, second, strict=True) if marked and id_ < 256) == b"that"
    assert train.text_bytes.tolist() == [4, sum(id_ < 256 for id_ in ids.tolist())]


def test_a_tokenizer_that_loses_something_is_refused():
    tokenizer = ByteLevelTokenizer()
    tokenizer.decode_bytes = lambda ids: b"other"
    with pytest.raises(DataError, match="document 0 does not decode to its text"):
        encode_block(block_of(DOCUMENTS), tokenizer, dtype="uint16")


@pytest.fixture
def saved(tmp_path):
    tokenizer = ByteLevelTokenizer(vocab_size=300, chat=True)
    block = block_of([*DOCUMENTS, ("validation", Document("c", "", messages=CHAT))])
    encoded = encode_block(block, tokenizer, dtype="uint16")
    save_encoded(encoded, tmp_path / "block", text_sha256=block.sha256)
    return tmp_path / "block", encoded, block


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-1], lambda c: b"", lambda c: c[:200] + b"x" + c[201:], lambda c: b"{}\n"]
)
def test_a_damaged_block_is_not_there(saved, damage):
    path, _, _ = saved
    content = path.read_bytes()
    path.write_bytes(damage(content[:-1] + bytes([content[-1] ^ 1])))
    assert text_sha256_of(path) is None
    path.unlink()
    assert text_sha256_of(path) is None


TOKENIZER = ByteLevelTokenizer(vocab_size=270, chat=True)
TALK = ({"role": "user", "content": "u"}, {"role": "assistant", "content": "answer"})


def test_conversations_keep_their_place_among_texts_which_carry_loss_throughout():
    documents = [Document("a", "one"), Document("t", "", messages=TALK), Document("b", "two"), Document("c", "3")]
    rendered = render_documents(documents, TOKENIZER)
    ids, mask = render(TOKENIZER, TALK)
    assert rendered.ids.tolist() == [*b"one", *ids.tolist(), *b"two3"]
    assert rendered.ends.tolist() == [3, 3 + len(ids), 6 + len(ids), 7 + len(ids)]
    assert rendered.loss_mask is not None
    assert rendered.loss_mask.tolist() == [True] * 3 + mask.tolist() + [True] * 4
    assert rendered.loss_mask.dtype == np.bool_


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
    assert WholeConversations().scope == "document"
    with pytest.raises(ConversationError):
        render_documents([items[2]], TOKENIZER)


TEXTS = [f"Document {number} says: {'ja ' * (number % 5)}<|end_of_text|> ä\n" for number in range(100)]
DOCUMENTS_ENCODERS = [("train", Document(f"{number}", text)) for number, text in enumerate(TEXTS)]


@pytest.fixture
def blocks(monkeypatch):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", 300)
    return list(cut_into_blocks(DOCUMENTS_ENCODERS))


def encoders(folder, *, num_processes, num_cores=2):
    folder.mkdir(exist_ok=True)
    work = WorkFolder(folder)
    work.begin("x")
    if not (folder / "tokenizer").exists():
        train_byte_pairs(TEXTS, vocab_size=290).save(folder / "tokenizer")
    return work, Encoders(work, "uint16", num_processes, num_cores)


@pytest.mark.parametrize("num_processes", [None, 1, 3])
def test_processes_write_the_same_bytes_as_a_thread(blocks, tmp_path, num_processes):
    here, encode_here = encoders(tmp_path / "here", num_processes=0)
    apart, encode_apart = encoders(tmp_path / "apart", num_processes=num_processes)
    done = list(encode_here(blocks))
    assert [one.number for one in done] == list(range(len(blocks)))
    assert [one.sha256 for one in done] == [block.sha256 for block in blocks]
    assert list(encode_apart(iter(blocks))) == done
    for one in done:
        assert here.block(one.number).read_bytes() == apart.block(one.number).read_bytes()
        assert not apart.raw(one.number).exists()


@pytest.mark.parametrize("num_processes", [0, 2])
def test_what_is_there_is_not_encoded_again_and_what_is_damaged_is(blocks, tmp_path, num_processes):
    work, encode = encoders(tmp_path / "work", num_processes=num_processes)
    list(encode(blocks))
    times = [work.block(block.number).stat().st_ino for block in blocks]
    work.block(3).write_bytes(work.block(3).read_bytes()[:-1])
    list(encode(blocks))
    again = [work.block(block.number).stat().st_ino for block in blocks]
    assert [number for number, (a, b) in enumerate(zip(times, again, strict=True)) if a != b] == [3]


CHAT_SPOOL = ({"role": "user", "content": "hällo"}, {"role": "assistant", "content": "hi"})
DOCUMENTS_SPOOL = [
    ("train", Document("a", 'täxt\n\u2028\x00 "quoted"')),
    ("test", Document("b", "plain")),
    ("train", Document("c", "", messages=CHAT_SPOOL)),
    ("validation", Document("d", "\U0001f600 last")),
]


def test_a_block_comes_back_from_the_disk_as_it_was(tmp_path):
    (block,) = cut_into_blocks(DOCUMENTS_SPOOL)
    block.save(tmp_path / "block")
    again = load_block(tmp_path / "block", number=block.number, left_out=block.left_out)
    assert again == block
    assert again.sha256 == block.sha256
    assert list(zip(again.splits, again.documents, strict=True)) == DOCUMENTS_SPOOL


SPLITS = ("train", "validation", "test")


def block_of_append(documents):
    """Encode (split, number of tokens) pairs; the ids are the places."""
    encoded = {}
    for split in SPLITS:
        places = [place for place, (of, _) in enumerate(documents) if of == split]
        if places:
            lengths = [documents[place][1] for place in places]
            ids = np.repeat(np.array(places, np.uint16), lengths)
            ends = np.cumsum(lengths, dtype=np.int64)
            encoded[split] = Encoded(ids, ends, np.array(lengths, np.int64), np.array(places, np.int64))
    return encoded


def shards(folder, *, budget=None, wanted=("train",), commit=None):
    folder.mkdir(exist_ok=True)
    return Shards(folder, dtype="uint16", shard_tokens=10, wanted=wanted, token_budget=budget, commit=commit)


BLOCK = [("train", 3), ("test", 2), ("train", 4), ("validation", 1), ("train", 2), ("test", 5)]


@pytest.mark.parametrize(
    ("budget", "train", "test", "validation"),
    [(1, 3, 0, 0), (3, 3, 0, 0), (4, 7, 2, 0), (7, 7, 2, 0), (8, 9, 2, 1), (9, 9, 2, 1), (10, 9, 7, 1)],
)
def test_the_training_document_that_reaches_the_budget_is_the_last(tmp_path, budget, train, test, validation):
    made = shards(tmp_path, budget=budget)
    made.append(block_of_append(BLOCK), text_sha256="")
    assert made.is_full == (budget < 10)
    splits = made.finish()
    sizes = {split: manifest.num_tokens for split, manifest in splits.items()}
    assert sizes == {name: size for name, size in zip(SPLITS, (train, validation, test), strict=True) if size}


def test_a_split_that_is_empty_at_the_budget_gets_the_next_document_that_is_its(tmp_path):
    made = shards(tmp_path, budget=1, wanted=SPLITS)
    made.append(block_of_append(BLOCK[:3]), text_sha256="")
    assert not made.is_full
    added = made.append(block_of_append(BLOCK[2:]), text_sha256="")
    assert set(added) == {"validation"}
    assert made.is_full
    assert {split: manifest.num_tokens for split, manifest in made.finish().items()} == {
        "train": 3, "validation": 1, "test": 2
    }  # fmt: skip


@given(
    sizes=st.lists(st.tuples(st.sampled_from(SPLITS), st.integers(1, 9)), min_size=1, max_size=12),
    cut=st.integers(0, 12),
    budget=st.none() | st.integers(1, 40),
)
def test_a_commit_is_gone_on_from_to_the_same_end(tmp_path_factory, sizes, cut, budget):
    folder = tmp_path_factory.mktemp("append")
    blocks = [block_of_append([document]) for document in sizes]
    whole = shards(folder / "whole", budget=budget)
    for number, block in enumerate(blocks):
        whole.append(block, text_sha256=f"{number}")
    first = shards(folder / "again", budget=budget)
    for number, block in enumerate(blocks[:cut]):
        first.append(block, text_sha256=f"{number}")
    commit = first.commit()
    first.close()
    second = shards(folder / "again", budget=budget, commit=commit)
    for number, block in list(enumerate(blocks))[cut:]:
        second.append(block, text_sha256=f"{number}")
    assert (second.chain, second.next_block) == (whole.chain, whole.next_block)
    splits = second.finish()
    assert splits == whole.finish()
    for split in splits.values():
        tokens = TokenSplit(folder / "again", dtype="uint16", split=split)
        assert tokens.num_tokens == split.text_bytes


TEXT = "some text of fifty characters, most of it the same"
CHAT_LEARN = ({"role": "user", "content": "a question of forty characters, and so on"},)


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", 100)
    work = WorkFolder(tmp_path)
    work.begin("x")
    return work


def blocks_learn(count=100):
    documents = [("test" if n % 10 == 0 else "train", Document(f"{n}", TEXT)) for n in range(count)]
    return cut_into_blocks(documents)


def test_the_whole_of_a_small_corpus_is_learned_from_without_what_is_held_out(work):
    held = hold_blocks(blocks_learn(20), work, sample_bytes=10**6, budget=None)
    assert [name for name, _ in held.texts(work)] == [f"{n}" for n in range(20) if n % 10]
    assert held.train_bytes == 18 * len(TEXT)
    tokenizer = learn(BytePairSpec(vocab_size=280, sample_bytes=10**6), held, work)
    assert tokenizer.vocab_size == 280
    assert len(tokenizer.encode(TEXT)) < len(TEXT)


def test_a_sample_of_more_is_drawn_by_name(work):
    held = hold_blocks(blocks_learn(), work, sample_bytes=1250, budget=None)
    assert held.train_bytes > 4000
    spec = Recorder(sample_bytes=1250)
    learn(spec, held, work)
    assert 500 < sum(map(len, spec.seen)) < 2500


def test_what_is_said_in_conversations_is_learned_from(work):
    chats = cut_into_blocks([("train", Document("c", "", messages=CHAT_LEARN))])
    held = hold_blocks(chats, work, sample_bytes=100, budget=None)
    assert [text for _, text in held.texts(work)] == [CHAT_LEARN[0]["content"]]
    assert held.train_bytes == len(CHAT_LEARN[0]["content"])


TEXTS_TRAIN_TOKENIZER = ["the same words again and again, " * 20, "and again the same words\n" * 20]


def test_byte_pairs_are_learned_to_the_vocabulary_asked_for():
    spec = BytePairSpec(vocab_size=270, special_tokens=["<|end|>", "<|user|>"])
    tokenizer = spec.build(TEXTS_TRAIN_TOKENIZER)
    assert tokenizer.vocab_size == spec.vocab_size == 270
    assert len(tokenizer.encode(TEXTS_TRAIN_TOKENIZER[0])) < len(TEXTS_TRAIN_TOKENIZER[0])
    assert tokenizer.fingerprint == spec.build(iter(TEXTS_TRAIN_TOKENIZER)).fingerprint


def test_a_vocabulary_without_room_is_refused_before_any_text_is_read():
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size: .* 258"):
        BytePairSpec(vocab_size=257, special_tokens=["<|end|>", "<|user|>"])
    with pytest.raises(ConfigurationError, match=r"tokenizer\.special_tokens: must have one that ends a document"):
        BytePairSpec(vocab_size=300, special_tokens=[])
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size: .*got 100"):
        ByteLevelSpec(vocab_size=100)
