"""Rows hold every token once, and windows predict each once."""

import subprocess
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmtrain.data.manifest import Manifest, Shard, SplitManifest
from lmtrain.data.packing import BestFit, Contiguous, OneDocument, PackedRows, RowPieces
from lmtrain.data.packing_index import best_fit_decreasing, build_best_fit
from lmtrain.data.rows import RowBatch, with_known_ids
from lmtrain.data.shard_writer import ShardWriter
from lmtrain.data.shards import TokenSplit
from lmtrain.data.windows import evaluation_windows, num_training_windows
from lmtrain.errors import ConfigurationError, DataError
from tests.data.documents import END_OF_TEXT, documents_of, make_dataset

DOCUMENTS = {
    "lengths": st.lists(st.integers(1, 30), min_size=1, max_size=25),
    "context_tokens": st.integers(2, 16),
    "shard_tokens": st.sampled_from([7, 1000]),
}


def read_all(packing, dataset, context_tokens):
    rows = packing.rows(dataset, context_tokens=context_tokens)
    return rows, rows.read(np.arange(rows.num_rows))


def lines_of(ids, documents):
    """Return what each document of a row reads and predicts: inputs, and the targets of the same places."""
    return [
        (ids[:-1][documents == number].tolist(), ids[1:][documents == number].tolist())
        for number in np.unique(documents)
    ]


@settings(max_examples=40)
@given(**DOCUMENTS)
def test_best_fit_trains_every_id_once_an_epoch(tmp_path_factory, lengths, context_tokens, shard_tokens):
    dataset = make_dataset(tmp_path_factory.mktemp("d"), lengths, shard_tokens=shard_tokens)
    _, batch = read_all(BestFit(), dataset, context_tokens)
    trained = Counter(batch.ids[:, 1:][batch.loss_mask].tolist())
    assert trained == Counter(token for document in documents_of(dataset) for token in document)
    assert (batch.ids[:, 0] == END_OF_TEXT).all()


@settings(max_examples=40)
@given(**DOCUMENTS)
def test_best_fit_with_a_mask_reads_each_document_as_if_alone(tmp_path_factory, lengths, context_tokens, shard_tokens):
    dataset = make_dataset(tmp_path_factory.mktemp("d"), lengths, shard_tokens=shard_tokens)
    _, batch = read_all(BestFit(document_mask=True), dataset, context_tokens)
    documents = documents_of(dataset)
    pieces = {
        tuple(document[start : start + context_tokens])
        for document in documents
        for start in range(0, len(document), context_tokens)
    }
    found = set()
    for ids, numbers, mask in zip(batch.ids, batch.documents, batch.loss_mask, strict=True):
        assert numbers[0] == 0
        for inputs, targets in lines_of(ids, np.where(mask, numbers, -1)):
            if mask[0] and tuple(targets) in pieces:
                assert inputs == [END_OF_TEXT, *targets[:-1]]
                found.add(tuple(targets))
    assert found == pieces


@settings(max_examples=40)
@given(**DOCUMENTS)
def test_contiguous_with_a_mask_predicts_each_id_inside_its_document(
    tmp_path_factory, lengths, context_tokens, shard_tokens
):
    dataset = make_dataset(tmp_path_factory.mktemp("d"), lengths, shard_tokens=shard_tokens)
    split = dataset.split("train")
    if split.num_tokens <= context_tokens:
        return
    rows, batch = read_all(Contiguous(document_mask=True), dataset, context_tokens)
    assert batch.ids.tolist() == split.windows(np.arange(rows.num_rows) * context_tokens, context_tokens + 1).tolist()
    for row, numbers in enumerate(batch.documents):
        ends = np.cumsum(lengths)
        positions = row * context_tokens + np.arange(context_tokens)
        # A target's document is the one that its own position lies in: an end-of-text predicts into the next.
        of_target = np.searchsorted(ends, positions + 1, side="right")
        assert (numbers == of_target - of_target[0]).all()
    assert batch.loss_mask is None, "no target is left out"


@settings(max_examples=40)
@given(**DOCUMENTS)
def test_one_document_a_row_trains_the_beginning_of_each(tmp_path_factory, lengths, context_tokens, shard_tokens):
    dataset = make_dataset(tmp_path_factory.mktemp("d"), lengths, shard_tokens=shard_tokens)
    rows, batch = read_all(OneDocument(), dataset, context_tokens)
    assert rows.num_rows == len(lengths)
    assert batch.documents is None
    for ids, mask, document in zip(batch.ids, batch.loss_mask, documents_of(dataset), strict=True):
        assert ids[0] == END_OF_TEXT
        assert ids[1:][mask].tolist() == document[:context_tokens]


@pytest.mark.parametrize("packing", [Contiguous(document_mask=True), BestFit(document_mask=True), OneDocument()])
@pytest.mark.parametrize("max_tokens", [None, 30])
@pytest.mark.parametrize("shard_tokens", [25, 10_000])
def test_held_out_documents_are_whole_and_begin_as_in_training(tmp_path, shard_tokens, max_tokens, packing):
    lengths = [3, 20, 7, 2, 2, 2, 9, 8, 1, 5]
    dataset = make_dataset(tmp_path, lengths, shard_tokens=shard_tokens)
    ids = dataset.split("train").window(0, sum(lengths))
    windows = packing.held_out(dataset, "train", context_tokens=8, max_tokens=max_tokens)
    end = ids[lengths[0] - 1]
    seen = []
    for index in range(windows.num_windows):
        inputs, targets, documents = windows.window(index)
        assert documents is not None
        for number in range(documents.max() + 1):
            part = documents == number
            assert inputs[part][0] == end
            kept = targets[part][targets[part] != -100]
            assert (inputs[part][1 : len(kept)] == kept[:-1]).all()
            seen.append(kept.tolist())
    starts = np.cumsum([0, *lengths[:-1]])
    documents = [(start, start + n) for start, n in zip(starts, lengths, strict=True)]
    pieces = [(at, min(at + 8, stop)) for start, stop in documents for at in range(start, stop, 8)]
    expected = [ids[start:stop].tolist() for start, stop in pieces]
    assert seen == expected[: len(seen)]
    assert len(seen) == len(expected) if max_tokens is None else pieces[len(seen)][0] >= max_tokens
    assert (windows.window(windows.num_windows).targets == -100).all()


CONTEXT_TOKENS = 8


def test_marks_of_the_shards_are_read_beside_the_ids(tmp_path):
    np.arange(1, 13, dtype="<u2").tofile(tmp_path / "train_00000.ds")
    np.array([5, 12], dtype="<u8").tofile(tmp_path / "train_00000.ds.index")
    np.array([0, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1], np.uint8).tofile(tmp_path / "train_00000.ds.mask")
    shard = Shard("train_00000.ds", 12, 2, "", "", mask_sha256="x")
    split = TokenSplit(tmp_path, dtype="uint16", split=SplitManifest(2, 12, 0, (shard,)))
    pieces = RowPieces(np.array([0, 5, 5]), np.array([5, 3, 7]), np.array([2, 1]))
    settings = {"num_rows": 2, "fingerprint": "", "context_tokens": CONTEXT_TOKENS, "end_of_text_id": END_OF_TEXT}
    rows = PackedRows(split, lambda _: pieces, **settings).read(np.arange(2))
    assert rows.ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 6, 7, 8, 9, 10, 11, 12, 0]]
    assert rows.loss_mask is not None
    assert rows.loss_mask.astype(int).tolist() == [[0, 0, 1, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0, 1, 0]]


LENGTHS = [3, 20, 7, 8, 1, 9, 17, 2]


def read(folder):
    ends = np.fromfile(folder / "row_ends.i64", "<i8")
    starts, lengths = np.fromfile(folder / "starts.i64", "<i8"), np.fromfile(folder / "lengths.u32", "<u4")
    bounds = [0, *ends.tolist()]
    return [list(zip(starts[a:b].tolist(), lengths[a:b].tolist(), strict=True)) for a, b in pairwise(bounds)]


def test_golden_rows(tmp_path):
    build_best_fit(make_dataset(tmp_path, LENGTHS).split("train"), tmp_path, context_tokens=8)
    assert read(tmp_path) == [
        [(3, 8)],
        [(11, 8)],
        [(30, 8)],
        [(39, 8)],
        [(48, 8)],
        [(56, 8)],
        [(23, 7), (38, 1)],
        [(0, 3), (19, 4), (47, 1)],
        [(64, 1), (65, 2)],
    ]


def one_at_a_time(lengths, capacity):
    """Return how full each bin is, in the order of opening."""
    filled = []
    for length in sorted(lengths, reverse=True):
        fitting = [(capacity - level, index) for index, level in enumerate(filled) if capacity - level >= length]
        if fitting:
            filled[min(fitting)[1]] += length
        else:
            filled.append(length)
    return filled


@given(st.data())
def test_bins_are_filled_as_by_the_textbook(data):
    capacity = data.draw(st.integers(1, 50))
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=80))
    bins = best_fit_decreasing(np.array(lengths, dtype=np.int64), capacity=capacity)
    filled = np.bincount(bins, weights=lengths).tolist() if lengths else []
    assert sorted(filled) == sorted(one_at_a_time(lengths, capacity))
    assert sorted(set(bins.tolist())) == list(range(len(filled))), "no number is left out"


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


def test_a_context_longer_than_the_shards_is_refused():
    with pytest.raises(ConfigurationError, match=r"batch\.context_tokens: must be at most 99, .* got 256"):
        num_training_windows(100, 256)


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


@pytest.mark.parametrize("packing", ["contiguous", "best_fit"])
def test_a_shard_that_is_cut_off_between_two_reads_is_told_and_no_signal_ends_the_process(tmp_path, packing):
    script = f"""
import os, sys
from pathlib import Path
import numpy as np
from lmtrain.data.packing import BestFit, Contiguous
from lmtrain.errors import DataError
from tests.data.documents import make_dataset
folder = Path({str(tmp_path / "d")!r})
dataset = make_dataset(folder, [50] * 400, shard_tokens=10_000)
packing = Contiguous() if {packing!r} == "contiguous" else BestFit()
rows = packing.rows(dataset, context_tokens=64)
rows.read(np.arange(rows.num_rows))
os.truncate(folder / "train_00001.ds", 4096)
try:
    rows.read(np.arange(rows.num_rows))
except DataError as refused:
    print(refused)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, (ended.returncode, ended.stderr)
    assert "train_00001.ds was cut off while it was read" in ended.stdout


class Counted:
    """Rows of one id each, their own number."""

    num_rows = 10
    fingerprint = "f"

    def read(self, rows: NDArray[np.int64]) -> RowBatch:
        return RowBatch(rows[:, None].astype(np.uint16))


def manifest(vocab_size: int) -> Manifest:
    return Manifest(name="t", dtype="uint16", vocab_size=vocab_size, tokenizer_fingerprint="f", splits={})


def test_an_id_beyond_the_vocabulary_is_an_error_of_the_data() -> None:
    rows = with_known_ids(Counted(), manifest(8))
    assert (rows.num_rows, rows.fingerprint) == (10, "f")
    assert rows.read(np.array([3, 7])).ids.tolist() == [[3], [7]]
    with pytest.raises(DataError, match=r"holds id 8, but its vocabulary has 8 entries"):
        rows.read(np.array([3, 8]))
