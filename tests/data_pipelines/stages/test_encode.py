import numpy as np
import pytest

from data_pipelines.sources.base import Document
from data_pipelines.stages.encode import encode_block, load_encoded, save_encoded, text_sha256_of, with_end_of_text
from data_pipelines.stages.render import Rendered
from data_pipelines.stages.spool import cut_into_blocks
from lmtrain.errors import DataError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer

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


def test_documents_up_to_a_place_are_the_first():
    train = encode_block(block_of(DOCUMENTS), ByteLevelTokenizer(), dtype="uint32")["train"]
    assert train.up_to(2).ids.tolist() == [*b"zero", 256, 256]
    assert train.up_to(1).ends.tolist() == [5]
    assert len(train.up_to(-1).ids) == 0
    assert train.up_to(99).ids.tolist() == train.ids.tolist()


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


def test_end_of_text_is_put_behind_every_document_even_an_empty_one():
    ended = with_end_of_text(
        Rendered(np.array([7, 8], np.uint32), np.array([0, 2, 2]), np.array([True, False])), end_of_text_id=9
    )
    assert ended.ids.tolist() == [9, 7, 8, 9, 9]
    assert ended.ends.tolist() == [1, 4, 5]
    assert ended.loss_mask is not None
    assert ended.loss_mask.tolist() == [False, True, False, False, False]


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


def test_an_encoded_block_comes_back_from_the_disk(saved):
    path, encoded, block = saved
    again = load_encoded(path)
    assert list(again) == list(encoded)
    for split, one in encoded.items():
        for name in ("ids", "ends", "text_bytes", "places"):
            assert np.array_equal(getattr(again[split], name), getattr(one, name))
            assert getattr(again[split], name).dtype == getattr(one, name).dtype
    assert again["train"].loss_mask is None
    assert np.array_equal(again["validation"].loss_mask, encoded["validation"].loss_mask)
    assert text_sha256_of(path) == block.sha256
    assert [file.name for file in path.parent.iterdir()] == ["block"]


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
