"""Which documents are held out."""

import hashlib
from collections import defaultdict

import pytest

from data_pipelines.sources.base import Document
from data_pipelines.sources.files import Files
from data_pipelines.sources.hf_dataset import HuggingFaceDataset
from data_pipelines.stages.split import (
    TEST,
    TRAIN,
    VALIDATION,
    HeldOut,
    held_out_of,
    split_by_rule,
    split_documents,
    split_tail,
)
from lmtrain.errors import ConfigurationError, DataError
from tests.data_pipelines.poems import Poems

FIVE_PERCENT = HeldOut(validation_fraction=0.05, test_fraction=0.05)


def split(documents, held_out=FIVE_PERCENT):
    """Return each split's documents and the lines that were told."""
    told, splits = [], defaultdict(list)
    for name, document in split_documents(documents, held_out=held_out, tell=told.append):
        splits[name].append(document)
    return splits, told


def many(count, text="some text"):
    return [Document(f"file_{number}.txt", text) for number in range(count)]


def test_about_the_fractions_asked_for_are_held_out():
    splits, told = split(many(10_000))
    # Five standard deviations of a binomial count.
    assert abs(len(splits["validation"]) - 500) < 110
    assert abs(len(splits["test"]) - 500) < 110
    assert told == []


def test_every_document_is_in_one_split_in_its_order():
    documents = many(1000)
    splits, _ = split(documents)
    assert sorted(d.id for part in splits.values() for d in part) == sorted(d.id for d in documents)
    for part in splits.values():
        numbers = [documents.index(document) for document in part]
        assert numbers == sorted(numbers)


def test_a_document_stays_where_it_is_when_others_come_and_go():
    everything, _ = split(many(1000))
    some, _ = split(many(1000)[::2])
    for name in ("train", "validation", "test"):
        assert {d.id for d in some[name]} == {d.id for d in everything[name]} & {d.id for d in many(1000)[::2]}


def test_a_twentieth_is_the_documents_whose_hash_divides_by_twenty():
    # The rule that other programs are measured by; a held-out document must never slip into training after an upgrade.
    for name in ("argparse.py", "json/decoder.py", "", *(f"document {number}" for number in range(200))):
        divides = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20 == 0
        assert (FIVE_PERCENT.split_of(name) == "validation") == divides


@pytest.mark.parametrize("num_files", [1, 3])
def test_few_files_are_held_out_in_parts(num_files):
    text = "".join(f"A paragraph about number {number}.\n\n" for number in range(600))
    documents = [Document(f"{number}.txt", text) for number in range(num_files)]
    splits, told = split(documents)
    assert set(splits) == {"train", "validation", "test"}
    assert len(told) == 1
    assert f"{num_files} into" in told[0]
    total = sum(len(document.text) for part in splits.values() for document in part)
    assert total == num_files * len(text)
    assert len(splits["train"]) > 60
    assert splits["train"][0].id.startswith("0.txt#")


def test_too_little_text_is_refused_with_how_much_it_takes():
    message = r"source gives 10 characters in 1 documents: too little to hold any out; give at least 1,200 characters"
    with pytest.raises(DataError, match=message):
        split([Document("a", "0123456789")])


def test_a_large_corpus_is_split_as_it_streams(monkeypatch):
    monkeypatch.setattr("data_pipelines.stages.split.SMALL_CORPUS_CHARACTERS", 100)
    consumed = []

    def stream():
        for document in many(1000):
            consumed.append(document.id)
            yield document

    documents = split_documents(stream(), held_out=FIVE_PERCENT, tell=pytest.fail)
    assert next(documents)[1].id == "file_0.txt"
    assert len(consumed) < 20
    assert [d.id for _, d in documents] == [d.id for d in many(1000)[1:]]


def test_the_parts_of_a_long_document_of_a_large_corpus_stay_in_one_split(monkeypatch):
    monkeypatch.setattr("data_pipelines.stages.split.SMALL_CORPUS_CHARACTERS", 100)
    monkeypatch.setattr("data_pipelines.stages.split.MAX_DOCUMENT_CHARACTERS", 50)
    splits, _ = split(many(100, "word " * 60))
    parents = {name: {piece.id.split("#")[0] for piece in pieces} for name, pieces in splits.items()}
    assert sum(map(len, parents.values())) == 100
    assert all(len(pieces) > 3 * len(parents[name]) for name, pieces in splits.items())


def test_equal_parts_of_a_small_corpus_go_to_one_split():
    text = "".join(f"Paragraph {number}.\n\n" for number in range(600))
    splits, _ = split([Document("a", text), Document("b", text + "and more")])
    texts = [{piece.text for piece in pieces} for pieces in splits.values()]
    assert len(texts) == 3
    assert sum(map(len, texts)) == len(set().union(*texts)) < sum(map(len, splits.values()))


def test_ending_it_early_changes_no_split(monkeypatch):
    whole = split(many(1000))
    monkeypatch.setattr("data_pipelines.stages.split.ENOUGH_CHARACTERS", 100)
    monkeypatch.setattr("data_pipelines.stages.split.ENOUGH_DOCUMENTS", 200)
    assert split(many(1000)) == whole


FRACTIONS = (0.05, 0.05)
NAMED = Files(paths=["a"], validation_paths=["b"])


@pytest.mark.parametrize(
    ("source", "rule", "budget", "message"),
    [
        (Poems(), "tial", None, r"data\.folder\.split=tial is not hash or tail\. Did you mean 'tail'"),
        (Poems(), "tail", 5, r"a budget of 5 tokens stops before it .*; nearest valid: data\.folder\.split=hash"),
        (NAMED, "tail", None, r"no effect with source\.validation_paths"),
        (HuggingFaceDataset(name="a/b"), "tail", None, r"set source\.streaming=false, or nearest valid: .*=hash"),
    ],
)
def test_what_a_rule_cannot_do_is_refused_with_the_nearest_word(source, rule, budget, message):
    with pytest.raises(ConfigurationError, match=message):
        held_out_of(source, rule, fractions=FRACTIONS, budget=budget)
    held_out_of(HuggingFaceDataset(name="a/b", streaming=False), "tail", fractions=FRACTIONS)


def test_a_document_in_both_texts_is_told(capsys):
    documents = [Document("a", "held", split="validation"), Document("b", "own"), Document("c", "held")]

    def read():
        return documents

    pairs = list(split_by_rule(read, read, held_out=HeldOut(0, 0, "named")))
    assert [split for split, _ in pairs] == ["validation", "train", "train"]
    assert "1 training document equal to one of source.validation_paths: " in capsys.readouterr().err


LAST_TENTH = HeldOut(validation_fraction=0.05, test_fraction=0.05, rule="tail")


def split_held_out_tail(texts, held_out=LAST_TENTH):
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    pairs = split_tail(documents, held_out=held_out, num_characters=sum(map(len, texts)))
    return [(name, document.text) for name, document in pairs]


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_the_last_tenth_is_held_out_in_reading_order(count):
    text = "".join(f"line {number:06d} of a book\n" for number in range(4000))
    size = len(text) // count
    texts = [text[start : start + size] for start in range(0, size * count, size)]
    pairs = split_held_out_tail(texts)
    assert "".join(part for _, part in pairs) == text[: size * count], "nothing is lost or moved"
    assert [name for name, _ in pairs] == sorted((name for name, _ in pairs), key=[TRAIN, VALIDATION, TEST].index)
    for name, share in ((VALIDATION, 0.05), (TEST, 0.05)):
        length = sum(len(part) for of, part in pairs if of == name)
        assert length / (size * count) == pytest.approx(share, abs=0.002)


def test_only_a_long_document_is_cut_at_the_place_and_to_a_word():
    parts = split_held_out_tail(["word " * 2000], HeldOut(validation_fraction=0.1, test_fraction=0, rule="tail"))
    assert [name for name, _ in parts] == [TRAIN, VALIDATION]
    assert parts[0][1].endswith("word ")
    assert len(split_held_out_tail(["word " * 20] * 200)) == 200
