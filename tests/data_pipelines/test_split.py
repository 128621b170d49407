"""Which documents are held out."""

import contextlib
import hashlib
import io
from collections import defaultdict

import pytest

from data_pipelines.sources.base import Document
from data_pipelines.stages.split import HeldOut, split_documents

FIVE_PERCENT = HeldOut(validation_fraction=0.05, test_fraction=0.05)


def split(documents, held_out=FIVE_PERCENT):
    """Return each split's documents and the lines that were told."""
    told, splits = io.StringIO(), defaultdict(list)
    with contextlib.redirect_stderr(told):
        for name, document in split_documents(documents, held_out=held_out):
            splits[name].append(document)
    return splits, told.getvalue().splitlines()


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
    assert f"hold some out: {num_files}" in told[0]
    total = sum(len(document.text) for part in splits.values() for document in part)
    assert total == num_files * len(text)
    assert len(splits["train"]) > 60
    assert splits["train"][0].id.startswith("0.txt#")


def test_equal_parts_of_a_small_corpus_go_to_one_split():
    text = "".join(f"Paragraph {number}.\n\n" for number in range(600))
    splits, _ = split([Document("a", text), Document("b", text + "and more")])
    texts = [{piece.text for piece in pieces} for pieces in splits.values()]
    assert len(texts) == 3
    assert sum(map(len, texts)) == len(set().union(*texts)) < sum(map(len, splits.values()))
