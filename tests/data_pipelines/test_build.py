import json

import pytest

from data_pipelines.build import Build, Settings
from data_pipelines.stages import spool as spool_module
from data_pipelines.stages.split import HeldOut
from data_pipelines.stages.train_tokenizer import BytePairSpec, TokenizerSpec
from data_pipelines.stages.verify import problems
from lmtrain.data.shards import open_dataset
from lmtrain.errors import DataError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from tests.data_pipelines.poems import Poems, files


class Recorder(TokenizerSpec):
    """Bytes as they are, after a look at the texts."""

    vocab_size = 257

    def __init__(self, sample_bytes):
        self.sample_bytes = sample_bytes
        self.seen = []

    def build(self, texts):
        self.seen = list(texts)
        return ByteLevelTokenizer()

    def fingerprint_parts(self):
        return {"kind": "recorder"}


def make(folder, *, source=None, spec=None, num_processes=None, validation_fraction=0.1, min_document_characters=1):
    source = source or Poems()
    folder.mkdir()
    build = Build(
        source=source,
        source_fingerprint=source.fingerprint(),
        spec=spec or BytePairSpec(vocab_size=300),
        settings=Settings(
            held_out=HeldOut(validation_fraction=validation_fraction, test_fraction=0.1),
            min_document_characters=min_document_characters,
            shard_tokens=2000,
            token_dtype="uint16",
        ),
        num_processes=num_processes,
    )
    build(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("root") / "data")


def test_the_folder_holds_verified_shards_their_tokenizer_and_nothing_else(folder):
    dataset = open_dataset(folder)
    assert list(problems(dataset)) == []
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


def test_a_build_with_processes_is_equal_to_the_byte(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "PART_BYTES", 3000)
    assert files(make(tmp_path / "data", num_processes=2)) == files(folder)


def test_held_out_text_is_not_what_the_tokenizer_learned_from(tmp_path):
    spec = Recorder(sample_bytes=10**9)
    dataset = open_dataset(make(tmp_path / "data", spec=spec))
    assert len(spec.seen) == dataset.split("train").num_documents < 60


def test_a_large_text_is_sampled_for_the_tokenizer(tmp_path):
    text_bytes = open_dataset(make(tmp_path / "whole")).split("train").text_bytes
    spec = Recorder(sample_bytes=text_bytes // 2)
    make(tmp_path / "sampled", spec=spec)
    assert 0.25 * text_bytes < sum(len(text.encode()) for text in spec.seen) < 0.75 * text_bytes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": Poems(count=0)}, r"source poems gives no document: it holds none; give it text"),
        ({"min_document_characters": 10**6}, r"gives no document: 60 too short; .*min_document_characters"),
    ],
)
def test_a_source_without_a_document_is_refused_with_what_was_dropped(tmp_path, settings, message):
    with pytest.raises(DataError, match=message):
        make(tmp_path / "data", **settings)


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
