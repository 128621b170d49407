"""Preparing data: the folder, its budget and splits, and continuing after any end."""

import time
from dataclasses import replace

import pytest

from data_pipelines import progress
from data_pipelines.engines.local import LocalEngine
from data_pipelines.prepare import prepare
from data_pipelines.shard_filler import SourcePass
from data_pipelines.sources.base import Document, Skipped
from data_pipelines.sources.files import Files
from data_pipelines.stages import blocks as spool_module
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from data_pipelines.stages.split import HeldOut
from data_pipelines.stages.train_tokenizer import ByteLevelSpec, BytePairSpec
from data_pipelines.verify import problems
from lmtrain.data.packing_index import ends_of_shards
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.tokenizers.loading import load_tokenizer
from tests.data_pipelines.poems import Poems, Recorder, files, make


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("root") / "data")


def test_the_folder_holds_verified_shards_their_tokenizer_and_nothing_else(folder):
    dataset = open_dataset(folder)
    assert list(problems(folder)) == []
    assert set(dataset.splits) == {"train", "validation", "test"}
    assert sum(split.num_documents for split in dataset.splits.values()) == 60
    assert len(dataset.manifest.splits["train"].shards) > 1
    assert {path.split("_")[0].split("/")[0] for path in files(folder)} == {
        "dataset.json", "tokenizer", "train", "validation", "test"
    }  # fmt: skip


def test_every_document_decodes_to_its_clean_text(folder):
    dataset = open_dataset(folder)
    tokenizer = load_tokenizer(dataset.tokenizer_folder)
    dataset.require_tokenizer(tokenizer.fingerprint)
    texts = set()
    for split in dataset.splits.values():
        start = 0
        for end in (end for ends in ends_of_shards(split) for end in ends.tolist()):
            ids = split.window(start, end - start).tolist()
            assert ids[-1] == tokenizer.end_of_text_id
            assert tokenizer.end_of_text_id not in ids[:-1]
            texts.add(tokenizer.decode(ids))
            start = end
    assert texts == {document.text.replace("\r\n", "\n") for document in Poems().documents()}


@pytest.mark.parametrize(("block_bytes", "num_processes"), [(3000, 0), (3000, 2), (500, 0)])
def test_blocks_and_processes_change_no_byte(folder, tmp_path, monkeypatch, block_bytes, num_processes):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", block_bytes)
    assert files(make(tmp_path / "data", num_processes=num_processes)) == files(folder)


def test_text_that_changes_meanwhile_is_refused(tmp_path):
    class Changing(Poems):
        def documents(self):
            yield from super().documents()
            self.version = "2"

    with pytest.raises(DataError, match=r"source poems changed while it was prepared; run the same command again"):
        make(tmp_path / "data", source=Changing())


@pytest.mark.parametrize("budget", [1, 500, 3000])
@pytest.mark.parametrize("block_bytes", [700, 10**6])
def test_a_budget_stops_with_the_training_document_that_reaches_it(folder, tmp_path, monkeypatch, budget, block_bytes):
    monkeypatch.setattr("data_pipelines.stages.split.SMALL_CORPUS_CHARACTERS", 100)
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", block_bytes)
    whole, short = open_dataset(folder), tmp_path / "data"
    make(short, spec=Recorder(sample_bytes=0), token_budget=budget * 3)
    dataset = open_dataset(short)
    train = dataset.split("train")
    ends = [end for ends in ends_of_shards(train) for end in ends.tolist()]
    assert ends[-1] >= budget * 3 > (0 if len(ends) == 1 else ends[-2])
    assert whole.split("train").num_documents > train.num_documents
    assert set(dataset.splits) == {"train", "validation", "test"}


def test_held_out_documents_of_a_budget_are_those_that_came_before_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipelines.stages.split.SMALL_CORPUS_CHARACTERS", 100)
    spec = Recorder(sample_bytes=0)
    dataset = open_dataset(make(tmp_path / "data", spec=spec, token_budget=8000))
    tokenizer = load_tokenizer(dataset.tokenizer_folder)
    numbers = {}
    for name, split in dataset.splits.items():
        ids = split.window(0, split.num_tokens).tolist()
        texts = tokenizer.decode([id_ if id_ != 256 else 0 for id_ in ids]).split("\0")[:-1]
        numbers[name] = [int(text.split("\n")[0].removeprefix("Poem ")) for text in texts]
    last = numbers["train"][-1]
    assert sorted(number for some in numbers.values() for number in some) == list(range(last + 1))
    assert last < 59


@pytest.mark.parametrize("block_bytes", [700, 10**6])
def test_what_was_dropped_behind_the_budgets_last_document_does_not_count(tmp_path, monkeypatch, block_bytes):
    class Gappy(Poems):
        def documents(self):
            for document in super().documents():
                yield document
                yield Skipped(f"{document.id}-gap", "gap")

    monkeypatch.setattr("data_pipelines.stages.split.SMALL_CORPUS_CHARACTERS", 100)
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", block_bytes)
    spec = Recorder(sample_bytes=0)
    dataset = open_dataset(make(tmp_path / "data", source=Gappy(), spec=spec, token_budget=8000))
    taken = sum(split.num_documents for split in dataset.splits.values())
    assert taken < 59
    assert dataset.manifest.dropped["gap"] == taken - 1, "one between each two of those taken"
    whole = open_dataset(make(tmp_path / "whole", source=Gappy(), spec=spec))
    assert whole.manifest.dropped["gap"] == 60, "the one behind the last document too"


SETTINGS = {
    "cleaning": {"unicode": UnicodeRepair(), "length": LengthFilter()},
    "deduplicate": {"exact": ExactDeduplication()},
    "validation_fraction": 0.1,
    "test_fraction": 0.1,
    "shard_tokens": 2000,
}


def prepared(root, **settings):
    arguments = {"source": Poems(), "tokenizer": BytePairSpec(vocab_size=300), **SETTINGS, **settings}
    return prepare(root=str(root), **arguments)


@pytest.fixture(scope="module")
def folder_prepare(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("data"))


def test_a_second_call_finds_the_first_without_a_word(folder_prepare, capsys):
    written = (folder_prepare / "dataset.json").stat().st_mtime_ns
    started = time.process_time()
    assert prepared(folder_prepare.parent) == folder_prepare
    assert time.process_time() - started < 0.2
    assert (folder_prepare / "dataset.json").stat().st_mtime_ns == written
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "other",
    [
        {"source": Poems(version="2")},
        {"tokenizer": BytePairSpec(vocab_size=301)},
        {"validation_fraction": 0.2},
        {"test_fraction": 0.2},
        {"cleaning": {"length": LengthFilter(min_characters=2)}},
        {"deduplicate": None},
        {"token_budget": 10**6, "allow_short": True},
        {"shard_tokens": 3000},
    ],
)
def test_another_question_gets_another_folder(folder_prepare, tmp_path, other):
    assert prepared(tmp_path, **other).name != folder_prepare.name


@pytest.mark.parametrize("spec", [BytePairSpec(vocab_size=300), ByteLevelSpec()])
def test_conversations_without_chat_tokens_are_refused_before_anything_is_read(tmp_path, spec):
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    chats = Files(paths=[str(tmp_path / "chats.jsonl")], messages_column="messages")
    with pytest.raises(ConfigurationError, match=r"^files gives conversations, .*set tokenizer\.chat=true"):
        prepared(tmp_path / "data", source=chats, tokenizer=spec)
    assert not (tmp_path / "data").exists()


def test_validation_paths_hold_out_their_files_alone_and_their_copies_do_not_train(tmp_path):
    own, held = tmp_path / "own", tmp_path / "held"
    for folder_prepare in (own, held):
        folder_prepare.mkdir()
    for number in range(40):
        (own / f"{number}.txt").write_text(f"training text {number}\n")
    (held / "a.txt").write_text("held-out text\n")
    (own / "copy.txt").write_text("held-out text\n")
    source = Files(paths=[str(own)], validation_paths=[str(held)])
    folder_prepare = prepared(tmp_path / "data", source=source, tokenizer=ByteLevelSpec())
    dataset = open_dataset(folder_prepare)
    splits = {name: split.num_documents for name, split in dataset.manifest.splits.items()}
    assert splits == {"train": 40, "validation": 1}
    assert dataset.manifest.dropped == {"exact duplicate": 1}
    alone = Files(paths=[str(own / "copy.txt")], validation_paths=[str(held)])
    with pytest.raises(DataError, match=r"none of 1 document fell into the train split \(left out: 1 exact duplicate"):
        prepared(tmp_path / "none", source=alone, tokenizer=ByteLevelSpec())


class WithControls(Poems):
    def documents(self):
        yield from super().documents()
        yield Document("bell", "a\x00 text with\x07 a \x1b[1mbell\x1b[0m")
        yield Document("mark", "\ufeffa text that begins with a mark")


@pytest.mark.parametrize("num_processes", [0, 2])
def test_characters_that_cleaning_removes_are_counted_wherever_it_runs(tmp_path, num_processes):
    held_out = HeldOut(validation_fraction=0.1, test_fraction=0.1)
    reading = SourcePass(
        WithControls(), (UnicodeRepair(),), LocalEngine(num_processes=num_processes), held_out, tmp_path
    )
    assert sum(map(len, reading.blocks())) == 62
    assert reading.dropped == {"control characters": 5}


def test_conversations_are_learned_from(tmp_path):
    class Chats(Poems):
        def documents(self):
            for document in super().documents():
                messages = ({"role": "user", "content": f"{document.id}?"}, {"role": "assistant", "content": "yes"})
                yield replace(document, text="", messages=messages)

    spec = Recorder(sample_bytes=10**6)
    with pytest.raises(DataError, match="special tokens"):  # the recorder's tokenizer has none
        make(tmp_path / "data", source=Chats(), spec=spec)
    assert "poem_1?\n\nyes" in spec.seen


def test_held_out_text_is_not_what_the_tokenizer_learned_from(tmp_path):
    spec = Recorder(sample_bytes=10**9)
    dataset = open_dataset(make(tmp_path / "data", spec=spec))
    assert len(spec.seen) == dataset.split("train").num_documents < 60


def test_a_stage_prints_a_line_a_minute_outside_a_terminal(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.stage("read") as shown:
        for _ in range(150):
            now[0] += 1
            shown.advance(documents=1)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["5", "65", "125", "150"]
