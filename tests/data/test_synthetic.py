"""Synthetic data has the loss that it promises."""

import math
from collections import defaultdict

import numpy as np
import pytest

from lmtrain.data.shards import open_dataset
from lmtrain.data.synthetic import synthetic


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return open_dataset(synthetic(root=str(tmp_path_factory.mktemp("root")), vocab_size=300, num_tokens=60_000, seed=3))


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
