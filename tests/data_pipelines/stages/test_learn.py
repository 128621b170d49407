from types import SimpleNamespace

import pytest

from data_pipelines import progress
from data_pipelines.sources.base import Document
from data_pipelines.stages import spool as spool_module
from data_pipelines.stages.learn import BYTES_PER_TOKEN, HELD_FOR_LEARNING, hold_blocks, learn
from data_pipelines.stages.spool import cut_into_blocks
from data_pipelines.stages.train_tokenizer import BytePairSpec
from data_pipelines.work_folder import WorkFolder
from tests.data_pipelines.poems import Recorder

TEXT = "some text of fifty characters, most of it the same"
CHAT = ({"role": "user", "content": "a question of forty characters, and so on"},)


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", 100)
    work = WorkFolder(tmp_path)
    work.begin("x")
    return work


def blocks(count=100):
    documents = [("test" if n % 10 == 0 else "train", Document(f"{n}", TEXT)) for n in range(count)]
    return cut_into_blocks(documents)


@pytest.mark.parametrize(
    ("sample_bytes", "budget", "wanted"), [(200, None, 200 * HELD_FOR_LEARNING), (1000, 50, 50 * BYTES_PER_TOKEN)]
)
def test_no_more_is_held_than_a_sample_takes(work, sample_bytes, budget, wanted):
    rest = blocks()
    held = hold_blocks(rest, work, sample_bytes=sample_bytes, budget=budget)
    assert wanted <= held.train_bytes < wanted + 200
    again = [document.id for block in held.again(work) for document in block.documents]
    assert again + [document.id for block in rest for document in block.documents] == [f"{n}" for n in range(100)]
    assert not list((work.folder / ".work" / "blocks").iterdir())


def test_the_line_of_the_reading_counts_the_bytes_of_the_documents_it_counts(work, capsys):
    hold_blocks(blocks(20), work, sample_bytes=10**6, budget=None)
    assert "20 documents, 1.0 kB" in capsys.readouterr().err, "0.9 kB of them are to train on"


def test_the_time_left_is_that_of_a_source_smaller_than_the_sample(work, capsys, monkeypatch):
    for seconds in ("PLAIN_LINE_SECONDS", "SECONDS_WORTH_A_FORECAST"):
        monkeypatch.setattr(progress, seconds, -1.0)
    source = SimpleNamespace(fraction_read=0.5)
    hold_blocks(blocks(20), work, sample_bytes=10**6, budget=None, source=source)
    assert "read                     50%, " in capsys.readouterr().err


def test_the_whole_of_a_small_corpus_is_learned_from_without_what_is_held_out(work):
    held = hold_blocks(blocks(20), work, sample_bytes=10**6, budget=None)
    assert [name for name, _ in held.texts(work)] == [f"{n}" for n in range(20) if n % 10]
    assert held.train_bytes == 18 * len(TEXT)
    tokenizer = learn(BytePairSpec(vocab_size=280, sample_bytes=10**6), held, work)
    assert tokenizer.vocab_size == 280
    assert len(tokenizer.encode(TEXT)) < len(TEXT)


def test_a_sample_of_more_is_drawn_by_name(work):
    held = hold_blocks(blocks(), work, sample_bytes=1250, budget=None)
    assert held.train_bytes > 4000
    spec = Recorder(sample_bytes=1250)
    learn(spec, held, work)
    assert 500 < sum(map(len, spec.seen)) < 2500


def test_what_is_said_in_conversations_is_learned_from(work):
    chats = cut_into_blocks([("train", Document("c", "", messages=CHAT))])
    held = hold_blocks(chats, work, sample_bytes=100, budget=None)
    assert [text for _, text in held.texts(work)] == [CHAT[0]["content"]]
    assert held.train_bytes == len(CHAT[0]["content"])
