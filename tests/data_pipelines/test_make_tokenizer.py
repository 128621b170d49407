"""Learning, saving and comparing a tokenizer."""

import pytest

from data_pipelines.make_tokenizer import make_tokenizer
from data_pipelines.sources.base import Document, Source
from data_pipelines.stages.split import HeldOut
from data_pipelines.stages.train_tokenizer import BytePairSpec
from lmtrain.errors import ConfigurationError
from lmtrain.tokenizers.loading import load_tokenizer

NAMES = [f"document {number}" for number in range(200)]
HELD_OUT = HeldOut(validation_fraction=0.05, test_fraction=0.05)


class Words(Source):
    """Documents whose training ones say one thing and held-out ones another; it counts how many were read."""

    def __init__(self, num_documents=200):
        self.num_documents = num_documents
        self.num_read = 0

    name = "words"

    def fingerprint(self):
        return "x"

    def documents(self):
        for name in NAMES[: self.num_documents]:
            self.num_read += 1
            yield Document(name, {"train": "again " * 50}.get(HELD_OUT.split_of(name), "unseen " * 50))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


def test_a_tokenizer_is_learned_from_training_text_alone_saved_and_reported():
    report = make_tokenizer(source=Words(), tokenizer=BytePairSpec(vocab_size=270))
    assert report.folder is not None
    assert report.folder.startswith("tokenizers/words-270-")
    made = load_tokenizer(report.folder)
    assert (made.fingerprint, made.vocab_size) == (report.fingerprint, report.vocab_size)
    assert len(made.encode(" again")) == 1
    assert len(made.encode(" unseen")) > 4
    assert report.bytes_per_token["held-out text"]["this"] < 2
    assert report.num_used + report.num_unused + len(report.special_tokens) == 270


def test_the_same_question_finds_the_folder_again_and_another_tokenizer_is_not_overwritten():
    first = make_tokenizer(source=Words(), tokenizer=BytePairSpec(vocab_size=270), folder="mine")
    assert first == make_tokenizer(source=Words(), tokenizer=BytePairSpec(vocab_size=270), folder="mine")
    with pytest.raises(ConfigurationError, match="folder=mine holds another tokenizer"):
        make_tokenizer(source=Words(), tokenizer=BytePairSpec(vocab_size=271), folder="mine")
    assert load_tokenizer("mine").fingerprint == first.fingerprint
