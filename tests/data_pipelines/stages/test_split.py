import hashlib
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.sources.base import Document
from data_pipelines.stages.split import HeldOut, cut, place_of, split_documents
from lmtrain.errors import ConfigurationError, DataError

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


def test_a_larger_test_fraction_moves_nothing_out_of_validation():
    before, _ = split(many(1000))
    after, _ = split(many(1000), HeldOut(validation_fraction=0.05, test_fraction=0.2))
    assert before["validation"] == after["validation"]
    assert {d.id for d in before["test"]} < {d.id for d in after["test"]}


def test_a_twentieth_is_the_documents_whose_hash_divides_by_twenty():
    # The rule that other programs are measured by; a held-out document must never slip into training after an upgrade.
    for name in ("argparse.py", "json/decoder.py", "", *(f"document {number}" for number in range(200))):
        divides = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20 == 0
        assert (FIVE_PERCENT.split_of(name) == "validation") == divides


@given(text=st.text(alphabet="ab \n", max_size=400), num_characters=st.integers(1, 50))
def test_parts_of_a_text_join_to_it_and_keep_their_size(text, num_characters):
    parts = cut(text, num_characters)
    assert "".join(parts) == text
    assert all(num_characters <= len(part) <= 3 * num_characters // 2 + 2 for part in parts[:-1])
    assert len(parts[-1]) <= max(3 * num_characters // 2, 1)


def test_parts_end_with_a_paragraph_else_a_line_else_a_word():
    assert cut("aaaa aaaa\nbb\n\ncccc cccc", 10) == ["aaaa aaaa\nbb\n\n", "cccc cccc"]
    assert cut("aaaa aaaa bb\ncccc cccc", 10) == ["aaaa aaaa bb\n", "cccc cccc"]
    assert cut("aaaa aaaab bccc cccc", 10) == ["aaaa aaaab ", "bccc cccc"]
    assert cut("a" * 22, 10) == ["a" * 10, "a" * 12]


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


def test_documents_that_stay_whole_are_not_told_of_as_cut():
    splits, told = split([*many(15, "x" * 300), Document("a.txt", "word " * 4000), Document("b.txt", "text " * 3000)])
    parts = [d.id for part in splits.values() for d in part if "#" in d.id]
    assert {name.partition("#")[0] for name in parts} == {"a.txt", "b.txt"}
    assert f": 2 into {len(parts)}" in told[0]


def test_one_long_line_is_cut_too():
    splits, _ = split([Document("line.txt", "x" * 10_000)])
    assert all(splits[name] for name in ("train", "validation", "test"))


def test_files_of_like_size_stay_whole():
    splits, _ = split(many(30, "x" * 5000))
    assert all("#" not in document.id for part in splits.values() for document in part)


def test_a_split_that_the_hash_leaves_empty_takes_the_nearest():
    splits, told = split(many(20, "x" * 500), HeldOut(validation_fraction=0.001, test_fraction=0.001))
    assert [len(splits[name]) for name in ("validation", "train", "test")] == [1, 18, 1]
    assert place_of(splits["validation"][0].id) == min(place_of(document.id) for document in many(20))
    assert [line.split(" split ")[0].split()[-1] for line in told] == ["test", "validation"]


@given(num_documents=st.integers(3, 8), validation=st.floats(0.01, 0.98))
def test_no_split_of_a_small_corpus_is_empty(num_documents, validation):
    held_out = HeldOut(validation_fraction=validation, test_fraction=0.99 - validation)
    splits, _ = split(many(num_documents, "x" * 390), held_out)
    assert set(splits) == {"train", "validation", "test"}


def test_nothing_is_held_out_where_nothing_is_asked():
    splits, told = split(many(50), HeldOut(validation_fraction=0, test_fraction=0))
    assert set(splits) == {"train"}
    assert told == []


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


def test_a_document_of_millions_of_characters_is_cut_anywhere():
    pieces = list(split_documents([Document("book", "word " * 600_000)], held_out=FIVE_PERCENT, tell=print))
    assert "".join(document.text for _, document in pieces) == "word " * 600_000
    assert max(len(document.text) for _, document in pieces) <= 1_500_001


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ((1.5, 0.05), r"data\.folder\.validation_fraction=1\.5 is not a fraction"),
        ((0.05, -0.1), r"data\.folder\.test_fraction=-0\.1 is not a fraction"),
        ((0.5, 0.5), r"validation_fraction \+ data\.folder\.test_fraction = 1\.0 leaves nothing to train on"),
    ],
)
def test_fractions_that_leave_nothing_are_refused(fractions, message):
    with pytest.raises(ConfigurationError, match=message):
        HeldOut(validation_fraction=fractions[0], test_fraction=fractions[1])


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


def test_conversations_are_whole_and_count_by_what_is_said(monkeypatch):
    monkeypatch.setattr("data_pipelines.stages.split.SMALL_CORPUS_CHARACTERS", 1000)
    said = ({"role": "user", "content": "x" * 200},)
    consumed = []

    def chats():
        for number in range(40):
            consumed.append(number)
            yield Document(f"{number}", "", messages=said)

    documents = split_documents(chats(), held_out=FIVE_PERCENT, tell=pytest.fail)
    assert next(documents)[1].messages == said
    assert len(consumed) < 8
    assert len(list(documents)) == 39


def consumed_before_the_first(documents):
    """Return how many documents are drawn before the first one comes out."""
    drawn = []
    stream = (drawn.append(document) or document for document in documents)
    next(split_documents(stream, held_out=FIVE_PERCENT, tell=lambda _: None))
    return len(drawn)


def test_looking_ahead_ends_once_documents_are_many_and_reach_every_split(monkeypatch):
    monkeypatch.setattr("data_pipelines.stages.split.ENOUGH_CHARACTERS", 100)
    monkeypatch.setattr("data_pipelines.stages.split.ENOUGH_DOCUMENTS", 200)
    assert consumed_before_the_first(many(1000)) == 200
    only_train = [document for document in many(1000) if FIVE_PERCENT.split_of(document.id) == "train"]
    assert consumed_before_the_first(only_train[:500]) == 500, "nothing to hold out yet: look on"


def test_ending_it_early_changes_no_split(monkeypatch):
    whole = split(many(1000))
    monkeypatch.setattr("data_pipelines.stages.split.ENOUGH_CHARACTERS", 100)
    monkeypatch.setattr("data_pipelines.stages.split.ENOUGH_DOCUMENTS", 200)
    assert split(many(1000)) == whole
