import itertools
import json
import time
from functools import partial

import pytest

from data_pipelines.sources import hf_dataset
from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.hf_dataset import HuggingFaceDataset
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.storage.bounded_memory import bounded_memory
from tests.parquet_bombs import write_bomb

ROWS = [{"text": f"row {number}" if number != 3 else None, "label": number} for number in range(6)]
EXPECTED = [Skipped("corpus:3", "null text") if n == 3 else Document(f"corpus:{n}", f"row {n}") for n in range(6)]
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module", params=["parquet", "jsonl", "csv"])
def corpus(request, tmp_path_factory):
    """A local folder as the hub has them: a split in two files."""
    folder = tmp_path_factory.mktemp(request.param) / "corpus"
    import datasets

    for number, rows in enumerate((ROWS[:4], ROWS[4:])):
        name = f"data/train-{number:05}-of-00002.{request.param}"
        if request.param == "jsonl":
            write_jsonl(folder / name, rows)
        else:
            (folder / "data").mkdir(parents=True, exist_ok=True)
            table = datasets.Dataset.from_list(rows)
            getattr(table, f"to_{request.param}")(folder / name)
    return str(folder)


@pytest.fixture
def numbers(tmp_path):
    """A hundred numbered rows in four files."""
    for file in range(4):
        rows = [{"text": str(file * 25 + row)} for row in range(25)]
        write_jsonl(tmp_path / "numbers" / f"train-{file}.jsonl", rows)
    return str(tmp_path / "numbers")


def texts(name, **settings):
    return [document.text for document in HuggingFaceDataset(name=name, **settings).documents()]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_local_folder_yields_its_rows_in_order(corpus, streaming, tmp_path):
    source = HuggingFaceDataset(name=corpus, streaming=streaming, cache=str(tmp_path))
    source.check()
    assert list(source.documents()) == EXPECTED
    assert source.name == "corpus"


def test_a_folder_of_text_files_is_a_document_a_line(tmp_path):
    (tmp_path / "train.txt").write_text("one\ntwo\n")
    assert texts(str(tmp_path)) == ["one", "two"]


def test_conversations(tmp_path):
    write_jsonl(tmp_path / "train_sft.jsonl", [{"messages": CHAT}])
    readme = (
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train_sft\n    path: train_sft.jsonl\n---\n"
    )
    (tmp_path / "README.md").write_text(readme)
    source = HuggingFaceDataset(name=str(tmp_path), split="train_sft", messages_column="messages")
    source.check()
    (document,) = source.documents()
    assert (document.text, [dict(message) for message in document.messages or ()]) == ("", CHAT)


def test_as_many_rows_as_asked_for(corpus):
    source = HuggingFaceDataset(name=corpus, max_documents=2)
    assert list(source.documents()) == EXPECTED[:2]
    assert source.fraction_read == 1


@pytest.mark.parametrize("streaming", [True, False])
def test_a_shuffle_is_the_same_for_a_seed_and_loses_nothing(numbers, streaming, tmp_path):
    settings = {"streaming": streaming, "cache": str(tmp_path / "cache")}
    plain = texts(numbers, **settings)
    shuffled = texts(numbers, shuffle_seed=1, **settings)
    assert plain == [str(number) for number in range(100)]
    assert shuffled != plain
    assert sorted(shuffled, key=int) == plain
    assert texts(numbers, shuffle_seed=1, **settings) == shuffled
    assert texts(numbers, shuffle_seed=2, **settings) != shuffled


def test_a_smaller_buffer_moves_rows_less_far(numbers):
    def distance(**settings):
        found = texts(numbers, shuffle_seed=1, **settings)
        return max(abs(int(here) - int(there)) for here, there in itertools.pairwise(found))

    assert distance(shuffle_buffer_documents=2) != distance(shuffle_buffer_documents=100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"shuffle_buffer_documents": 5},
            r"source\.shuffle_buffer_documents=5 has no effect without source\.shuffle_seed",
        ),
        ({"shuffle_buffer_documents": 5, "shuffle_seed": 1, "streaming": False}, r"without source\.streaming=true"),
        ({"split": "train[:5]"}, r"source\.split=train\[:5\] is a slice, which needs source\.streaming=false"),
        ({"text_column": "a", "messages_column": "b"}, r"has no effect beside"),
        ({"max_documents": 0}, r"source\.max_documents=0 must be positive; leave it out"),
        ({"max_documents": -3}, r"source\.max_documents=-3 must be positive"),
        (
            {"shuffle_seed": 1, "shuffle_buffer_documents": 0},
            r"source\.shuffle_buffer_documents=0 must be positive",
        ),
    ],
)
def test_settings_that_exclude_one_another_or_mean_nothing_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        HuggingFaceDataset(name="corpus", **settings)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"text_column": "txt"},
            r"source\.text_column=txt is not a column of .*: it has text, label\. Did you mean 'text'",
        ),
        ({"messages_column": "chat"}, r"source\.messages_column=chat is not a column of .*: it has text, label\."),
        ({"split": "trian"}, r"source\.split=trian is no split of .*: it has train\. Did you mean 'train'\?"),
        ({"config": "nope"}, r"source\.config=nope is no config of .*: it has default\."),
    ],
)
def test_a_wrong_name_lists_the_right_ones_before_any_work(corpus, wrong, message):
    with pytest.raises(DataError, match=message):
        HuggingFaceDataset(name=corpus, **wrong).check()


def test_rows_of_another_type_are_skipped_with_the_reason(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", [{"text": "a"}, {"text": {"b": 1}}, {"other": 1}])
    _, *others = HuggingFaceDataset(name=str(tmp_path)).documents()
    assert [skipped.reason for skipped in others] == ["text is dict instead of text", "null text"]


def test_a_broken_file_is_refused_with_the_place(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n{"text": ')
    with pytest.raises(DataError, match=r"cannot be read after row 0: .*source=files, which skips bad rows") as refusal:
        texts(str(tmp_path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("streaming", [True, False])
def test_rows_beyond_memory_are_refused(streaming, tmp_path, monkeypatch):
    monkeypatch.setattr(hf_dataset, "bounded_memory", partial(bounded_memory, more_bytes=1 << 28))
    write_bomb(tmp_path / "train.parquet", num_rows=300, text_bytes=1 << 22)
    with pytest.raises(DataError, match=r"cannot be read (at all|after row 0): .*failed\. Correct the file"):
        texts(str(tmp_path), streaming=streaming, cache=str(tmp_path / "cache"))


def test_a_hub_that_cannot_be_reached_is_an_environment_problem_at_once(monkeypatch):
    class Unreachable:
        def dataset_info(self, name, **settings):
            raise OSError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfApi", Unreachable)

    def waits(seconds):
        raise AssertionError(f"waited {seconds} s for a hub that is not there")

    monkeypatch.setattr(time, "sleep", waits)
    with pytest.raises(
        EnvironmentProblem, match=r"source\.name=nobody/nothing is no folder here, and the hub cannot be"
    ):
        HuggingFaceDataset(name="nobody/nothing").check()


def test_the_fingerprint_follows_arguments_and_local_files_not_the_way_of_reading(tmp_path):
    def fingerprint(**settings):
        return HuggingFaceDataset(name=str(tmp_path), **settings).fingerprint()

    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    before = fingerprint()
    assert fingerprint(streaming=False, cache="x") == before
    others = [
        {"split": "test"},
        {"max_documents": 1},
        {"text_column": "b"},
        {"messages_column": "text"},
        {"shuffle_seed": 1},
        {"shuffle_seed": 1, "shuffle_buffer_documents": 5},
        {"shuffle_seed": 1, "streaming": False},
        {"revision": "v1"},
        {"config": "c"},
    ]
    found = {before, *(fingerprint(**other) for other in others)}
    assert len(found) == 1 + len(others)
    (tmp_path / "train.jsonl").write_text('{"text": "b"}\n')
    assert fingerprint() not in found


def test_without_a_network_what_was_downloaded_is_read(numbers, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    texts(numbers, streaming=False, cache=str(cache))
    (found,) = cache.glob("numbers/*/*/*/*.arrow")  # as it lies there after a download from the hub:
    there = cache / "nobody___numbers" / "default" / "0.0.0" / ("0" * 40)
    there.parent.mkdir(parents=True)
    found.parent.rename(there)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert texts("nobody/numbers", streaming=False, cache=str(cache)) == [str(number) for number in range(100)]
