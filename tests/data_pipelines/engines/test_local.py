import os

import pytest

from data_pipelines.engines import local
from data_pipelines.engines.engine import Engine
from data_pipelines.engines.local import LocalEngine
from data_pipelines.sources.base import Document
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from data_pipelines.stages.quality import C4Quality, FineWebQuality, GopherQuality
from data_pipelines.stages.repetition import GopherRepetition
from lmtrain.errors import ConfigurationError
from tests.data_pipelines.corpus import ALL_JUNK, BROKEN, EMPTY, GOOD, JUNK, NEAR, SAME, Planted, kept, reasons

WEB = [UnicodeRepair(), LengthFilter(), GopherQuality(), GopherRepetition(), C4Quality(), FineWebQuality()]
STAGES = [*WEB, ExactDeduplication()]


def minhash():
    pytest.importorskip("datatrove.pipeline.dedup.minhash")
    pytest.importorskip("spacy")
    from data_pipelines.stages.minhash import MinHashDeduplication

    return MinHashDeduplication()


def run(folder, stages=STAGES, **settings):
    return list(LocalEngine(**settings)(Planted(), stages, folder=folder))


def test_it_is_an_engine():
    assert isinstance(LocalEngine(), Engine)


def test_everything_planted_is_dropped_for_its_reason_and_nothing_else(tmp_path):
    items = run(tmp_path)
    assert [item.id for item in items] == [item.id for item in Planted().documents()]
    assert kept(items) == [document.id for document in [*GOOD, *NEAR, *BROKEN]]
    assert reasons(items) == {
        "exact duplicate": len(SAME) + 1,
        "empty": len(EMPTY),
        "not UTF-8 text": 1,
        **dict.fromkeys(JUNK, 1),
    }
    repaired = next(item for item in items if item.id == "broken_1")
    assert repaired.text.endswith("\nThe caf\xe9 was na\xefve.")


@pytest.mark.parametrize("num_processes", [0, 1, 3])
def test_processes_do_not_decide_what_stays(tmp_path, monkeypatch, num_processes):
    monkeypatch.setattr(local, "BATCH_CHARACTERS", 5000)
    assert run(tmp_path / "several", num_processes=num_processes) == run(tmp_path / "one")
    assert not list(tmp_path.glob("several/*/*.jsonl"))


def test_slow_stages_go_to_processes_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "TRIAL_CHARACTERS", 0)
    monkeypatch.setattr(local, "FAST_CHARACTERS_PER_SECOND", 1e12)
    monkeypatch.setattr(local, "BATCH_CHARACTERS", 5000)
    monkeypatch.setattr(local, "_num_cores", lambda: 2)
    plain = run(tmp_path / "plain", num_processes=0)
    assert not (tmp_path / "plain").exists()
    assert run(tmp_path / "spread") == plain
    assert (tmp_path / "spread").exists()


def test_fast_stages_stay_and_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "TRIAL_CHARACTERS", 0)
    monkeypatch.setattr(local, "FAST_CHARACTERS_PER_SECOND", 0)
    run(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_reading_stops_when_the_rest_is_not_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "BATCH_CHARACTERS", 1000)
    read = []

    class Watched(Planted):
        def documents(self):
            for item in super().documents():
                read.append(item)
                yield item

    items = LocalEngine()(Watched(), STAGES, folder=tmp_path)
    next(items)
    assert len(read) < 5


def test_without_stages_only_what_no_tokenizer_can_take_is_dropped(tmp_path):
    assert reasons(run(tmp_path, [])) == {"empty": 2, "not UTF-8 text": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder of finished jobs of one process, and what came of them."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(folder, [*STAGES, minhash()], num_processes=1)


@pytest.mark.slow
def test_minhash_runs_as_jobs_and_finds_what_is_planted(tmp_path, finished):
    items = run(tmp_path, [*STAGES, minhash()], num_processes=2, piece_characters=20_000)
    assert len(list(tmp_path.glob("*/pieces/*.jsonl"))) > 3
    found = reasons(items)
    assert found["near duplicate"] == len(NEAR)
    assert sum(found.values()) == len(NEAR) + len(SAME) + 1 + len(EMPTY) + 1 + len(ALL_JUNK)
    assert finished[1] == items


@pytest.mark.slow
def test_finished_jobs_are_not_run_again_and_the_source_is_not_read_again(finished):
    folder, items = finished

    class Gone(Planted):
        def documents(self):
            raise AssertionError
            yield

    logs = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert list(LocalEngine()(Gone(), [*STAGES, minhash()], folder=folder)) == items
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == logs


def test_a_negative_number_of_processes_is_refused():
    with pytest.raises(ConfigurationError, match=r"engine\.num_processes=-1 is negative; nearest valid: 0"):
        LocalEngine(num_processes=-1)


def test_one_long_document_is_a_batch_of_its_own():
    items = [Document("a", "x" * 3_000_000), Document("b", "y"), Document("c", "z")]
    assert [len(batch) for batch in local._batches(items)] == [1, 2]
    assert local._num_cores() <= (os.cpu_count() or 1)
