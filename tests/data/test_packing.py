"""What every packing must do with any documents: B rows, T context tokens."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtrain.data.packing import BestFit, Contiguous, OneDocument
from lmtrain.data.rows import read_rows
from lmtrain.errors import DataError
from tests.data.documents import END_OF_TEXT, documents_of, make_dataset

DOCUMENTS = {
    "lengths": st.lists(st.integers(1, 30), min_size=1, max_size=25),
    "context_tokens": st.integers(2, 16),
    "shard_tokens": st.sampled_from([7, 1000]),
}


def read_all(packing, dataset, context_tokens):
    rows = packing.rows(dataset, context_tokens=context_tokens)
    return rows, read_rows(rows, np.arange(rows.num_rows))


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


def test_text_is_no_conversation(tmp_path):
    dataset = make_dataset(tmp_path, [3, 4], shard_tokens=8)
    with pytest.raises(DataError, match="is text, without marks of the assistant's words"):
        BestFit(of_conversations=True).rows(dataset, context_tokens=4)


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


def test_contiguous_rows_without_a_mask_are_the_windows_alone(tmp_path):
    dataset = make_dataset(tmp_path, [5, 9, 20], shard_tokens=8)
    rows, batch = read_all(Contiguous(), dataset, 8)
    assert rows.num_rows == 4
    assert (batch.documents, batch.loss_mask) == (None, None)
    assert rows.fingerprint == dataset.manifest.fingerprint, "the order of runs that began earlier stays"


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


@pytest.mark.parametrize("shard_tokens", [7, 1000])
@pytest.mark.parametrize(
    "packing", [Contiguous(), Contiguous(document_mask=True), BestFit(document_mask=True), OneDocument()]
)
def test_rows_located_together_are_read_a_few_at_a_time(tmp_path, packing, shard_tokens):
    dataset = make_dataset(tmp_path, [3, 20, 7, 1, 9, 2, 5, 33, 4], shard_tokens=shard_tokens)
    rows = packing.rows(dataset, context_tokens=8)
    wanted = np.arange(rows.num_rows)[::-1]
    located = rows.locate(wanted)
    for first in range(rows.num_rows - 2):
        for part, whole in zip(located.read(first, first + 3), read_rows(rows, wanted[first : first + 3]), strict=True):
            assert (part is None) == (whole is None)
            if part is not None and whole is not None:
                assert (part.dtype, part.tolist()) == (whole.dtype, whole.tolist())


@pytest.mark.parametrize("packing", [BestFit(), OneDocument()])
def test_shares_are_told_in_a_line(tmp_path, packing):
    dataset = make_dataset(tmp_path, [3, 20, 7])
    assert "33.33% of the documents are cut" in packing.report(dataset, context_tokens=8)


def test_windows_have_nothing_to_tell(tmp_path):
    assert Contiguous().report(make_dataset(tmp_path, [9]), context_tokens=4) is None


@pytest.mark.parametrize("packing", [Contiguous, BestFit])
def test_held_out_windows_of_a_mask_keep_documents_apart(tmp_path, packing):
    dataset = make_dataset(tmp_path, [3, 20, 7])
    for masked in (False, True):
        windows = packing(document_mask=masked).held_out(dataset, "train", context_tokens=8, max_tokens=None)
        assert (windows.window(0).documents is not None) == masked


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


def test_packings_of_the_same_data_have_orders_of_their_own(tmp_path):
    dataset = make_dataset(tmp_path, [9, 9])
    packings = [(Contiguous(), 4), (BestFit(), 4), (BestFit(), 8), (OneDocument(), 4)]
    assert len({packing.rows(dataset, context_tokens=tokens).fingerprint for packing, tokens in packings}) == 4
