import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.stages.append import Shards, next_link
from data_pipelines.stages.encode import Encoded
from lmtrain.data.shards import TokenSplit

SPLITS = ("train", "validation", "test")


def block_of(documents):
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
    made.append(block_of(BLOCK), text_sha256="")
    assert made.is_full == (budget < 10)
    splits = made.finish()
    sizes = {split: manifest.num_tokens for split, manifest in splits.items()}
    assert sizes == {name: size for name, size in zip(SPLITS, (train, validation, test), strict=True) if size}


def test_a_split_that_is_empty_at_the_budget_gets_the_next_document_that_is_its(tmp_path):
    made = shards(tmp_path, budget=1, wanted=SPLITS)
    made.append(block_of(BLOCK[:3]), text_sha256="")
    assert not made.is_full
    added = made.append(block_of(BLOCK[2:]), text_sha256="")
    assert set(added) == {"validation"}
    assert made.is_full
    assert {split: manifest.num_tokens for split, manifest in made.finish().items()} == {
        "train": 3, "validation": 1, "test": 2
    }  # fmt: skip


def test_blocks_without_training_text_do_not_end_it(tmp_path):
    made = shards(tmp_path, budget=5)
    assert set(made.append(block_of([("test", 2)]), text_sha256="")) == {"test"}
    assert not made.is_full
    made.close()


@given(
    sizes=st.lists(st.tuples(st.sampled_from(SPLITS), st.integers(1, 9)), min_size=1, max_size=12),
    cut=st.integers(0, 12),
    budget=st.none() | st.integers(1, 40),
)
def test_a_commit_is_gone_on_from_to_the_same_end(tmp_path_factory, sizes, cut, budget):
    folder = tmp_path_factory.mktemp("append")
    blocks = [block_of([document]) for document in sizes]
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


def test_a_chain_depends_on_order():
    assert next_link(next_link("", "a"), "b") != next_link(next_link("", "b"), "a")
