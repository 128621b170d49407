import math
from collections import defaultdict

import numpy as np
import pytest

from lmtrain.data.shards import open_dataset
from lmtrain.data.synthetic import synthetic
from lmtrain.errors import ConfigurationError
from lmtrain.tokenizers.loading import load_tokenizer


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return open_dataset(synthetic(root=str(tmp_path_factory.mktemp("root")), vocab_size=300, num_tokens=60_000, seed=3))


def test_splits_have_the_tokens_asked_for_in_whole_documents(dataset):
    sizes = {name: split.num_tokens for name, split in dataset.splits.items()}
    assert sizes == {"train": 118 * 512, "validation": 6 * 512, "test": 6 * 512}
    assert (np.diff(dataset.split("train").document_ends(), prepend=0) == 512).all()


def test_every_document_ends_and_every_id_is_in_the_vocabulary(dataset):
    train = dataset.split("train")
    ids = train.window(0, train.num_tokens)
    assert int(ids.max()) < 300
    assert (ids[train.document_ends() - 1] == load_tokenizer(dataset.tokenizer_folder).end_of_text_id).all()


def test_its_tokenizer_is_the_one_in_the_manifest(dataset):
    tokenizer = load_tokenizer(dataset.tokenizer_folder)
    dataset.require_tokenizer(tokenizer.fingerprint)
    assert tokenizer.vocab_size == dataset.manifest.vocab_size == 300
    for split in dataset.splits.values():
        assert int(tokenizer.token_bytes()[split.window(0, split.num_tokens)].sum()) == split.text_bytes


def test_no_model_gets_below_ln_4(dataset):
    train = dataset.split("train")
    ids = train.window(0, train.num_tokens).reshape(-1, 512)[:, :-1]
    followers = defaultdict(set)
    for before, after in zip(ids[:, :-1].ravel().tolist(), ids[:, 1:].ravel().tolist(), strict=True):
        followers[before].add(after)
    assert max(map(len, followers.values())) == 4
    assert np.mean([math.log(len(after)) for after in followers.values()]) == pytest.approx(math.log(4), rel=0.02)


def test_the_same_settings_give_the_same_bytes(dataset, tmp_path):
    again = synthetic(root=str(tmp_path), vocab_size=300, num_tokens=60_000, seed=3)
    other = synthetic(root=str(tmp_path), vocab_size=300, num_tokens=60_000, seed=4)
    assert (again / "train_00000.ds").read_bytes() == (dataset.folder / "train_00000.ds").read_bytes()
    assert (other / "train_00000.ds").read_bytes() != (dataset.folder / "train_00000.ds").read_bytes()


def test_a_second_call_finds_the_first(tmp_path):
    settings = {"root": str(tmp_path), "vocab_size": 257, "num_tokens": 1000, "seed": 0}
    first = synthetic(**settings)
    written = (first / "dataset.json").stat().st_mtime_ns
    assert synthetic(**settings) == first
    assert (first / "dataset.json").stat().st_mtime_ns == written


def test_a_vocabulary_without_room_for_bytes_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"tokenizer\.vocab_size=100"):
        synthetic(root=str(tmp_path), vocab_size=100)
