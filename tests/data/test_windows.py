import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.data.manifest import SplitManifest
from lmtrain.data.shard_writer import ShardWriter
from lmtrain.data.shards import TokenSplit
from lmtrain.data.windows import ContiguousRows, evaluation_windows, num_training_windows
from lmtrain.errors import ConfigurationError


@pytest.fixture(scope="module")
def make_split(tmp_path_factory):
    """Make a split whose token at position p is p, in shards of 10 tokens."""
    made = {}

    def make(num_tokens):
        if num_tokens not in made:
            folder = tmp_path_factory.mktemp("windows")
            writer = ShardWriter(folder, split="train", dtype="uint16", shard_tokens=10)
            writer.append(np.arange(num_tokens), np.arange(1, num_tokens + 1))
            split: SplitManifest = writer.close(text_bytes=0)
            made[num_tokens] = TokenSplit(folder, dtype="uint16", split=split)
        return made[num_tokens]

    return make


@pytest.mark.parametrize(("num_tokens", "num_windows"), [(9, 1), (16, 1), (17, 2), (100, 12)])
def test_training_windows_begin_a_context_apart_and_overlap_by_one(make_split, num_tokens, num_windows):
    assert num_training_windows(num_tokens, 8) == num_windows
    for window in range(num_windows):
        ids = make_split(num_tokens).window(8 * window, 9)
        assert ids.dtype == np.uint16
        assert ids.tolist() == list(range(8 * window, 8 * window + 9))


@pytest.mark.parametrize(("num_tokens", "nearest"), [(100, 64), (65, 64), (3, 2)])
def test_a_context_longer_than_the_shards_names_the_nearest_that_fits(num_tokens, nearest):
    message = rf"batch\.context_tokens=256 needs 257 tokens, the shards have {num_tokens}; nearest valid: {nearest},"
    with pytest.raises(ConfigurationError, match=message):
        num_training_windows(num_tokens, 256)
    assert num_training_windows(num_tokens, nearest) >= 1


def test_next_to_no_tokens_ask_for_more_text():
    with pytest.raises(ConfigurationError, match=r"the shards have 1; prepare more text\."):
        num_training_windows(1, 256)


@given(num_tokens=st.integers(1, 60), context_tokens=st.integers(1, 70), max_tokens=st.none() | st.integers(1, 70))
def test_every_token_but_the_first_is_predicted_exactly_once(make_split, num_tokens, context_tokens, max_tokens):
    windows = evaluation_windows(make_split(num_tokens), context_tokens=context_tokens, max_tokens=max_tokens)
    predicted = Counter()
    for index in range(windows.num_windows):
        inputs, targets, _ = windows.window(index)
        assert inputs.shape == targets.shape == (context_tokens,)
        kept = targets != -100
        assert kept.any()
        assert (targets[kept] == inputs[kept] + 1).all()
        predicted.update(targets[kept].tolist())
    assert predicted == Counter(range(1, min(num_tokens, max_tokens or num_tokens)))


def test_a_window_past_the_last_has_no_target(make_split):
    windows = evaluation_windows(make_split(20), context_tokens=8)
    assert windows.num_windows == 3
    assert (windows.window(3).targets == -100).all()
    assert windows.window(3).inputs.shape == (8,)


@pytest.mark.parametrize(("context_tokens", "dtype"), [(32_766, "uint16"), (40_000, "uint16"), (20_000, "uint32")])
def test_windows_of_long_contexts_are_read_whole(tmp_path, context_tokens, dtype):
    num_tokens = 2 * context_tokens + 5
    writer = ShardWriter(tmp_path, split="train", dtype=dtype, shard_tokens=num_tokens)
    ids = np.arange(num_tokens) % 60_000
    writer.append(ids, np.array([num_tokens]))
    split = TokenSplit(tmp_path, dtype=dtype, split=writer.close(text_bytes=0))
    rows = ContiguousRows(split, context_tokens=context_tokens, fingerprint="", document_ends=None)
    for row in range(2):
        (found,) = rows.locate(np.array([0, 1])).read(row, row + 1).ids
        assert (found == ids[row * context_tokens : (row + 1) * context_tokens + 1]).all()


@pytest.mark.parametrize("packing", ["contiguous", "best_fit"])
def test_a_shard_that_is_cut_off_between_two_reads_is_told_and_no_signal_ends_the_process(tmp_path, packing):
    script = f"""
import os, sys
from pathlib import Path
import numpy as np
from lmtrain.data import shards
from lmtrain.data.packing import BestFit, Contiguous
from lmtrain.errors import DataError
from tests.data.documents import make_dataset
shards.LOOKS_APART = 0
folder = Path({str(tmp_path / "d")!r})
dataset = make_dataset(folder, [50] * 400, shard_tokens=10_000)
packing = Contiguous() if {packing!r} == "contiguous" else BestFit()
located = packing.rows(dataset, context_tokens=64).locate(np.arange(200))
located.read(0, 100)
os.truncate(folder / "train_00001.ds", 4096)
try:
    located.read(100, 200)
except DataError as refused:
    print(refused)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, (ended.returncode, ended.stderr)
    assert "train_00001.ds was cut off while it was read" in ended.stdout
