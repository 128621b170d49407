import json
import re
from dataclasses import replace

import pytest

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages import spool as spool_module
from data_pipelines.stages.clean import LengthFilter
from data_pipelines.stages.render import WholeConversations
from data_pipelines.stages.split import place_of
from data_pipelines.stages.verify import problems
from lmtrain.data.shards import open_dataset
from lmtrain.errors import DataError
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
        for end in split.document_ends().tolist():
            ids = split.window(start, end - start).tolist()
            assert ids[-1] == tokenizer.end_of_text_id
            assert tokenizer.end_of_text_id not in ids[:-1]
            texts.add(tokenizer.decode(ids))
            start = end
    assert texts == {document.text.replace("\r\n", "\n") for document in Poems().documents()}


def test_the_manifest_tells_bytes_references_and_where_it_came_from(folder):
    content = json.loads((folder / "dataset.json").read_text())
    assert content["splits"]["validation"]["text_bytes"] == content["references"]["validation"]["text_bytes"] > 0
    assert 0 < content["references"]["validation"]["xz_bits_per_byte"] < 8
    assert content["source"] == "poems"
    assert content["settings"]["tokenizer"]["vocab_size"] == content["vocab_size"] == 300
    assert "train" not in content["references"]


@pytest.mark.parametrize(("block_bytes", "num_processes"), [(3000, 0), (3000, 2), (500, 0)])
def test_blocks_and_processes_change_no_byte(folder, tmp_path, monkeypatch, block_bytes, num_processes):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", block_bytes)
    assert files(make(tmp_path / "data", num_processes=num_processes)) == files(folder)


def test_held_out_text_is_not_what_the_tokenizer_learned_from(tmp_path):
    spec = Recorder(sample_bytes=10**9)
    dataset = open_dataset(make(tmp_path / "data", spec=spec))
    assert len(spec.seen) == dataset.split("train").num_documents < 60


def test_a_large_text_is_sampled_for_the_tokenizer(tmp_path):
    text_bytes = open_dataset(make(tmp_path / "whole")).split("train").text_bytes
    spec = Recorder(sample_bytes=text_bytes // 2)
    make(tmp_path / "sampled", spec=spec)
    assert 0.25 * text_bytes < sum(len(text.encode()) for text in spec.seen) < 0.75 * text_bytes


class TurnsOutOfOrder(Poems):
    @property
    def has_conversations(self):
        return True

    def documents(self):
        turns = [{"role": "assistant", "content": "5"}, {"role": "user", "content": "2 + 3?"}]
        yield from (Document(f"talk:{line}", "", messages=tuple(turns)) for line in (1, 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": Poems(count=0)}, r"source poems gives no document: it holds none; give it text"),
        (
            {"stages": (LengthFilter(min_characters=10**6),)},
            r"no document: too short \(60, first: poem_0\); .*less of cleaning",
        ),
        (
            {"source": TurnsOutOfOrder(), "stages": (WholeConversations(),)},
            r"no document: .* assistant turn before any user turn \(2, first: talk:1\); correct its messages, a conv",
        ),
    ],
)
def test_a_source_without_a_document_is_refused_with_what_was_dropped(tmp_path, settings, message):
    with pytest.raises(DataError, match=message):
        make(tmp_path / "data", **settings)
    assert not (tmp_path / "data").exists()


def test_a_split_that_stays_empty_in_a_large_corpus_names_a_fraction_that_works(tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipelines.stages.split.SMALL_CORPUS_CHARACTERS", 100)
    message = r"data\.folder\.validation_fraction is too small: none of 60 documents .*; nearest valid: 0\.03\."
    with pytest.raises(DataError, match=message):
        make(tmp_path / "data", validation_fraction=1e-9)


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
    ends = train.document_ends()
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


def test_a_source_that_ends_before_the_budget_is_refused_and_its_work_kept(tmp_path, folder):
    message = r"source poems ended after [\d,]+ of the 1,000,000 tokens to train on .*kept: .*allow_short=true"
    with pytest.raises(DataError, match=message):
        make(tmp_path / "data", token_budget=1_000_000)

    class Unread(Poems):
        def documents(self):
            pytest.fail("read again")

    made = make(tmp_path / "data", source=Unread(), token_budget=1_000_000, allow_short=True)
    shards = {name: content for name, content in files(made).items() if name != "dataset.json"}
    assert shards == {name: content for name, content in files(folder).items() if name != "dataset.json"}


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


@pytest.mark.parametrize(("fraction", "is_told"), [(0.4, True), (0.1, False)])
def test_less_validation_text_than_asked_is_told(fraction, is_told, tmp_path, capsys):
    long = "a text that trains\n" * 400

    class Uneven(Poems):
        def documents(self):
            for document in super().documents():
                in_train = place_of(document.id) >= 0.4
                yield replace(document, text=f"{document.id} {long}") if in_train else document

    make(tmp_path / "data", source=Uneven(count=60) if is_told else Poems(count=60), validation_fraction=fraction)
    told = "where data.folder.validation_fraction asks for" in capsys.readouterr().err
    assert told == is_told


def test_far_more_held_out_than_asked_is_told_with_the_rules_that_hold_out_less(tmp_path, capsys):
    class Repetitive(Poems):
        def documents(self):
            yield Document("one.txt", "the quick brown fox jumps over the lazy dog by the river bank.\n" * 1_700)

    make(tmp_path / "data", source=Repetitive())
    told = capsys.readouterr().err
    assert re.search(r"validation split has 9\d\.\d+% of .* asks for [\d.]+%; data\.split=tail holds out the end", told)
    assert "or source.validation_paths names the validation text of source=files\n" in told
    assert "the train split has" not in told, "the same news twice"


@pytest.mark.parametrize("rule", ["tail", "named"])
def test_a_build_that_broke_off_goes_on_to_the_same_bytes_under_every_rule(rule, tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", 3000)

    class Breaking(Poems):
        left = 0

        def documents(self):
            for number, document in enumerate(super().documents()):
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt
                yield replace(document, split="validation") if rule == "named" and number < 7 else document

    source = Breaking()
    whole = files(make(tmp_path / "whole", source=source, rule=rule))
    source.left = 45 + (60 if rule == "tail" else 0)  # in the reading after the one that measures
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "broken", source=source, rule=rule)
    assert files(make(tmp_path / "broken", source=source, rule=rule)) == whole
