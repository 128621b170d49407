import json

import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.hf_dataset import HuggingFaceDataset
from lmtrain.errors import DataError, EnvironmentProblem

ROWS = [{"text": f"row {number}" if number != 3 else None, "label": number} for number in range(6)]
EXPECTED = [Skipped("corpus:3", "null text") if n == 3 else Document(f"corpus:{n}", f"row {n}") for n in range(6)]


@pytest.fixture(scope="module", params=["parquet", "jsonl"])
def corpus(request, tmp_path_factory):
    """A local folder as the hub has them."""
    folder = tmp_path_factory.mktemp(request.param) / "corpus"
    folder.mkdir()
    if request.param == "jsonl":
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        import datasets

        datasets.Dataset.from_list(ROWS).to_parquet(folder / "train.parquet")
    return str(folder)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_local_folder_yields_its_rows_in_order(corpus, streaming, tmp_path):
    source = HuggingFaceDataset(dataset=corpus, streaming=streaming, cache=str(tmp_path))
    assert list(source.documents()) == EXPECTED
    assert source.name == "corpus"


def test_as_many_rows_as_asked_for(corpus):
    assert list(HuggingFaceDataset(dataset=corpus, max_documents=2).documents()) == EXPECTED[:2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"text_column": "txt"},
            r"source\.text_column=txt is not a column of .*: it has text, label\. Did you mean 'text'",
        ),
        ({"split": "validation"}, r"source\.dataset=.* cannot be loaded: .*validation.*train"),
        ({"config": "nope"}, r"source\.dataset=.* cannot be loaded: .*nope.*default"),
    ],
)
def test_a_wrong_name_lists_the_right_ones(corpus, wrong, message):
    with pytest.raises(DataError, match=message):
        next(HuggingFaceDataset(dataset=corpus, **wrong).documents())


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"source\.dataset=.*nowhere cannot be loaded"):
        next(HuggingFaceDataset(dataset=str(tmp_path / "nowhere")).documents())


def test_a_hub_that_cannot_be_reached_is_an_environment_problem():
    with pytest.raises(EnvironmentProblem, match=r"source\.dataset=nobody/nothing cannot be reached"):
        next(HuggingFaceDataset(dataset="nobody/nothing").documents())


def test_the_fingerprint_follows_arguments_and_local_files_not_the_way_of_reading(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    before = HuggingFaceDataset(dataset=str(tmp_path)).fingerprint()
    assert HuggingFaceDataset(dataset=str(tmp_path), streaming=False, cache="x").fingerprint() == before
    assert HuggingFaceDataset(dataset=str(tmp_path), split="test").fingerprint() != before
    assert HuggingFaceDataset(dataset=str(tmp_path), max_documents=1).fingerprint() != before
    (tmp_path / "train.jsonl").write_text('{"text": "b"}\n')
    assert HuggingFaceDataset(dataset=str(tmp_path)).fingerprint() != before
