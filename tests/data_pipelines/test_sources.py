"""Datasets of the hub, mixtures, made conversations and the standard library."""

import json
import random
from collections import Counter
from functools import partial
from itertools import islice
from types import SimpleNamespace

import pytest

from data_pipelines.sources import hf_dataset
from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.chat_mixture import ChatMixture
from data_pipelines.sources.hf_dataset import HuggingFaceDataset
from data_pipelines.sources.made_conversations import (
    KINDS,
    MadeConversations,
    MadeQuestion,
    Material,
    make_questions,
)
from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.storage.bounded_memory import bounded_memory
from lmtrain.tokenizers.conversation import read_conversation
from tests.parquet_bombs import write_bomb

ROWS = [{"text": f"row {number}" if number != 3 else None, "label": number} for number in range(6)]
EXPECTED = [Skipped("corpus:3", "null text") if n == 3 else Document(f"corpus:{n}", f"row {n}") for n in range(6)]


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"text_column": "txt"},
            r"source\.text_column=txt: .* only text, label\. Did you mean 'text'",
        ),
        ({"messages_column": "chat"}, r"source\.messages_column=chat: .* only text, label\."),
        ({"split": "trian"}, r"source\.split: must be one of train .*got trian\. Did you mean 'train'\?"),
        ({"config": "nope"}, r"cannot be loaded: .*nope.*default"),
    ],
)
def test_a_wrong_name_lists_the_right_ones_before_any_work(corpus, wrong, message):
    with pytest.raises(DataError, match=message):
        HuggingFaceDataset(name=corpus, **wrong).check()


@pytest.mark.parametrize("streaming", [True, False])
def test_rows_beyond_memory_are_refused(streaming, tmp_path, monkeypatch):
    monkeypatch.setattr(hf_dataset, "bounded_memory", partial(bounded_memory, more_bytes=1 << 28))
    write_bomb(tmp_path / "train.parquet", num_rows=300, text_bytes=1 << 22)
    with pytest.raises(DataError, match=r"cannot be read after row 0: .*failed\. Correct the file"):
        texts(str(tmp_path), streaming=streaming, cache=str(tmp_path / "cache"))


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
        {"shuffle_seed": 1, "streaming": False},
        {"revision": "v1"},
        {"config": "c"},
    ]
    found = {before, *(fingerprint(**other) for other in others)}
    assert len(found) == 1 + len(others)
    (tmp_path / "train.jsonl").write_text('{"text": "b"}\n')
    assert fingerprint() not in found


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (ConnectionError("no\nnetwork"), EnvironmentProblem, r"a/b is not a folder here, .* cannot be reached: no"),
        (FileNotFoundError("a/b doesn't exist"), DataError, r"source\.name=a/b cannot be loaded: a/b doesn't exist"),
    ],
)
def test_what_the_hub_answers_is_one_line(monkeypatch, answer, kind, message):
    def ask(*_, **__):
        raise answer

    hub = SimpleNamespace(dataset_info=(lambda *_, **__: None) if kind is DataError else ask)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    monkeypatch.setattr("datasets.load_dataset_builder", ask)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(kind, match=message) as refusal:
        HuggingFaceDataset(name="a/b").check()
    assert "\n" not in str(refusal.value)


TURNS = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "A model."}]
README = (
    "---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {config}/{split}-*\n---\n"
)


@pytest.fixture(scope="module", name="copies")
def local_copies(tmp_path_factory):
    import datasets

    folder = tmp_path_factory.mktemp("copies")
    (folder / "smoltalk/data").mkdir(parents=True)
    talk = [{"messages": TURNS, "source": "x"}] * 3
    datasets.Dataset.from_list(talk).to_parquet(folder / "smoltalk/data/train-00000-of-00001.parquet")
    for name, config, split, rows in (
        ("mmlu", "all", "auxiliary_train", [{"question": "2?", "subject": "", "choices": ["1", "2"], "answer": 1}] * 2),
        ("gsm8k", "main", "train", [{"question": "1 + 1?", "answer": "<<1+1=2>>2\n#### 2"}]),
    ):
        (folder / name / config).mkdir(parents=True)
        datasets.Dataset.from_list(rows).to_parquet(folder / name / config / f"{split}-00000-of-00001.parquet")
        (folder / name / "README.md").write_text(README.format(config=config, split=split))
    (folder / "identity.jsonl").write_text(f"{json.dumps(TURNS)}\n\n{json.dumps({'messages': TURNS})}\n")
    return folder


def mixture(copies, **settings):
    names = {name: str(copies / name) for name in ("smoltalk", "mmlu", "gsm8k")}
    return ChatMixture(**{**names, "identity": str(copies / "identity.jsonl"), **settings})


def test_each_data_set_comes_as_often_as_in_the_public_mixture_and_is_told(copies, capsys) -> None:
    source = mixture(copies)
    source.check()
    rows = list(source.documents())
    kinds = Counter(row.id.partition(":")[0] for row in rows if isinstance(row, Document))
    assert kinds == {"smoltalk": 3, "mmlu": 6, "gsm8k": 4, "identity": 4}
    assert sum(row.id == "mmlu:0" for row in rows) == 3  # a repeated one keeps its name, and with it its split
    printed = capsys.readouterr().err
    assert "smoltalk 3 rows, mmlu 6 rows, gsm8k 4 rows, identity 4 rows" in printed


@pytest.fixture(scope="module", name="code")
def made_code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    (folder / "a.py").write_text("from abc import ABC\ndef read(self, size):\nopen door table under chair lamp\n")
    return folder


def made(code, **more):
    return MadeConversations(**{"num_conversations": 30, "num_words": 6, "folder": str(code), **more})


def test_conversations_are_valid_and_the_same_each_time(code):
    first, again = list(made(code).documents()), list(made(code).documents())
    assert first == again != list(made(code, seed=1).documents())
    assert len({document.id for document in first}) == 30
    assert {len(read_conversation(document.messages)) for document in first} == {2, 4}


MATERIAL = Material(
    words=["open", "door", "table", "under", "chair"],
    definitions=[("def read(self, size=-1):", "read", "self, size=-1")],
    imports=[("from abc import ABC", "abc")],
)


def test_held_out_questions_are_a_tenth_and_never_among_the_others():
    words = [f"{first}{second}" for first in "abcdefghij" for second in ("one", "two", "six", "ten")]
    material = Material(words, MATERIAL.definitions, MATERIAL.imports)
    others = {one.question for one in islice(make_questions(material, seed=0, held_out=False), 1000)}
    held_out = {one.question for one in islice(make_questions(material, seed=0, held_out=True), 300)}
    assert not others & held_out
    draw = random.Random(0)
    asked = [MadeQuestion("reverse", *KINDS["reverse"](draw, material)) for _ in range(1000)]
    assert 70 < sum(one.is_held_out for one in asked) < 130
