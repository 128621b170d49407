import json
import multiprocessing
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtrain.data import packing_index
from lmtrain.data.packing_index import (
    build_best_fit,
    build_once,
    build_one_document,
    cut_documents,
    document_groups,
    end_of_text_id,
    index_folder,
)
from lmtrain.errors import DataError
from tests.data.documents import make_dataset

LENGTHS = [3, 20, 7, 8, 1, 9, 17, 2]


def read(folder):
    ends = np.fromfile(folder / "row_ends.i64", "<i8")
    starts, lengths = np.fromfile(folder / "starts.i64", "<i8"), np.fromfile(folder / "lengths.u32", "<u4")
    bounds = [0, *ends.tolist()]
    return [list(zip(starts[a:b].tolist(), lengths[a:b].tolist(), strict=True)) for a, b in pairwise(bounds)]


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40), context_tokens=st.integers(1, 20))
def test_rows_hold_every_token_once_and_only_long_documents_are_cut(tmp_path_factory, lengths, context_tokens):
    folder = tmp_path_factory.mktemp("d")
    split = make_dataset(folder, lengths, shard_tokens=50).split("train")
    report = build_best_fit(split, folder, context_tokens=context_tokens)
    rows = read(folder)
    covered = sorted(position for row in rows for start, n in row for position in range(start, start + n))
    assert covered == list(range(sum(lengths)))
    assert all(0 < sum(n for _, n in row) <= context_tokens for row in rows)
    assert all(row == sorted(row) for row in rows), "inside a row as in the corpus"
    starts = {start for row in rows for start, _ in row}
    begins = np.cumsum([0, *lengths[:-1]]).tolist()
    assert set(begins) <= starts
    assert len(starts) == sum(-(-length // context_tokens) for length in lengths)
    assert report.num_rows == len(rows)
    assert report.num_cut_documents == sum(length > context_tokens for length in lengths)
    after_cuts = sum(n for row in rows for start, n in row if start not in begins)
    assert report.num_tokens_after_a_cut == after_cuts
    assert report.padding_share == pytest.approx(1 - sum(lengths) / (len(rows) * context_tokens))


def test_the_same_data_gives_the_same_bytes(tmp_path):
    split = make_dataset(tmp_path, LENGTHS).split("train")
    written = []
    for name in "ab":
        (tmp_path / name).mkdir()
        build_best_fit(split, tmp_path / name, context_tokens=8)
        written.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert written[0] == written[1]


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


@pytest.mark.parametrize("group", [1, 2, 3, 100])
@pytest.mark.parametrize("shard_tokens", [1, 10, 1000])
def test_groups_cover_the_documents_in_order(tmp_path, monkeypatch, group, shard_tokens):
    monkeypatch.setattr(packing_index, "GROUP_DOCUMENTS", group)
    split = make_dataset(tmp_path, LENGTHS, shard_tokens=shard_tokens).split("train")
    groups = list(document_groups(split))
    assert [len(lengths) for _, lengths in groups[:-1]] == [group] * (len(groups) - 1)
    assert np.concatenate([lengths for _, lengths in groups]).tolist() == LENGTHS
    assert np.concatenate([starts for starts, _ in groups]).tolist() == np.cumsum([0, *LENGTHS[:-1]]).tolist()


def test_long_documents_become_whole_contexts_and_a_rest():
    pieces = cut_documents(np.array([0, 20, 25]), np.array([20, 5, 8]), 8)
    assert pieces.starts.tolist() == [0, 8, 16, 20, 25]
    assert pieces.lengths.tolist() == [8, 8, 4, 5, 8]
    assert pieces.is_continued.tolist() == [False, True, True, False, False]


def test_one_document_a_row_counts_what_is_beyond_the_context(tmp_path):
    report = build_one_document(make_dataset(tmp_path, LENGTHS).split("train"), tmp_path, context_tokens=8)
    assert (report.num_rows, report.num_cut_documents, report.num_dropped_tokens) == (8, 3, 12 + 1 + 9)
    assert report.num_padding_tokens == 8 * 8 - (sum(LENGTHS) - 22)
    assert "32.84% of the tokens are beyond the context and dropped" in report.line("document")


def test_an_index_is_built_once_and_tells_its_shares(tmp_path):
    dataset = make_dataset(tmp_path / "d", LENGTHS)
    folder = index_folder(dataset, "best_fit", context_tokens=8)
    builds = []

    def build(aside):
        builds.append(aside)
        return build_best_fit(dataset.split("train"), aside, context_tokens=8)

    first, second = build_once(folder, build), build_once(folder, build)
    assert len(builds) == 1
    assert first == second
    written = json.loads((folder / "index.json").read_text())
    assert written["cut_share"] == 3 / 8
    assert written["padding_share"] == first.padding_share
    assert "37.50% of the documents are cut" in first.line("best_fit")
    assert folder != index_folder(dataset, "best_fit", context_tokens=16)
    assert folder.name != index_folder(make_dataset(tmp_path / "e", LENGTHS[1:]), "best_fit", context_tokens=8).name


def _build_slowly(folder, path):
    def build(aside):
        (path / f"by-{multiprocessing.current_process().pid}").touch()
        return build_best_fit(make_dataset(path / "d", LENGTHS).split("train"), aside, context_tokens=8)

    build_once(folder, build)


def test_many_processes_build_one_index(tmp_path):
    processes = [
        multiprocessing.get_context("fork").Process(target=_build_slowly, args=(tmp_path / "index", tmp_path))
        for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(list(tmp_path.glob("by-*"))) == 1


def test_documents_that_end_differently_are_refused(tmp_path):
    split = make_dataset(tmp_path, [4, 4]).split("train")
    assert end_of_text_id(split) == 0
    ids = np.memmap(tmp_path / "train_00000.ds", dtype="<u2", mode="r+")
    ids[3] = 9
    ids.flush()
    with pytest.raises(DataError, match=r"all end with the same id, here they end with 0, 9, .*packing=contiguous"):
        end_of_text_id(split)
