import pytest

from data_pipelines.sources.base import Document
from data_pipelines.stages import encoders as encoders_module
from data_pipelines.stages import spool as spool_module
from data_pipelines.stages.encoders import Encoders, encode_waiting
from data_pipelines.stages.spool import cut_into_blocks
from data_pipelines.work_folder import WorkFolder
from lmtrain.errors import DataError
from lmtrain.tokenizers.bpe import train_byte_pairs

TEXTS = [f"Document {number} says: {'ja ' * (number % 5)}<|end_of_text|> ä\n" for number in range(100)]
DOCUMENTS = [("train", Document(f"{number}", text)) for number, text in enumerate(TEXTS)]


@pytest.fixture
def blocks(monkeypatch):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", 300)
    return list(cut_into_blocks(DOCUMENTS))


def encoders(folder, *, num_processes, num_cores=2):
    folder.mkdir(exist_ok=True)
    work = WorkFolder(folder)
    work.begin("x")
    if not (folder / "tokenizer").exists():
        train_byte_pairs(TEXTS, vocab_size=290).save(folder / "tokenizer")
    return work, Encoders(work, "uint16", num_processes, num_cores)


@pytest.mark.parametrize("num_processes", [None, 1, 3])
def test_processes_write_the_same_bytes_as_a_thread(blocks, tmp_path, num_processes):
    here, encode_here = encoders(tmp_path / "here", num_processes=0)
    apart, encode_apart = encoders(tmp_path / "apart", num_processes=num_processes)
    done = list(encode_here(blocks))
    assert [one.number for one in done] == list(range(len(blocks)))
    assert [one.sha256 for one in done] == [block.sha256 for block in blocks]
    assert list(encode_apart(iter(blocks))) == done
    for one in done:
        assert here.block(one.number).read_bytes() == apart.block(one.number).read_bytes()
        assert not apart.raw(one.number).exists()


@pytest.mark.parametrize("num_processes", [0, 2])
def test_what_is_there_is_not_encoded_again_and_what_is_damaged_is(blocks, tmp_path, num_processes):
    work, encode = encoders(tmp_path / "work", num_processes=num_processes)
    list(encode(blocks))
    times = [work.block(block.number).stat().st_ino for block in blocks]
    work.block(3).write_bytes(work.block(3).read_bytes()[:-1])
    list(encode(blocks))
    again = [work.block(block.number).stat().st_ino for block in blocks]
    assert [number for number, (a, b) in enumerate(zip(times, again, strict=True)) if a != b] == [3]


def test_where_there_are_cores_and_text_there_are_processes(blocks, tmp_path, monkeypatch):
    asked = []

    def run_jobs(jobs, *, num_processes, **_):
        asked.append(num_processes)
        yield from jobs

    monkeypatch.setattr(encoders_module, "run_jobs", run_jobs)
    monkeypatch.setattr(encoders_module, "MANY_BLOCKS", 4)
    for num_cores, some in ((8, blocks), (8, blocks[:3]), (2, blocks)):
        _, encode = encoders(tmp_path / f"{num_cores}{len(some)}", num_processes=None, num_cores=num_cores)
        assert len(list(encode(some))) == len(some)
    assert asked == [7]


def test_what_a_worker_cannot_do_is_told_where_it_was_asked(tmp_path, blocks, monkeypatch):
    work, encode = encoders(tmp_path / "work", num_processes=1)

    def lost(*_):
        raise DataError("does not decode")

    monkeypatch.setattr(encoders_module, "run_jobs", lambda jobs, **_: jobs)
    monkeypatch.setattr(encoders_module, "encode_block", lambda *_, **__: lost())
    with pytest.raises(DataError, match="does not decode"):
        list(encode(blocks))
    assert list(work.block(0).parent.glob("00000000.*.text"))


def test_a_worker_encodes_what_waits(tmp_path, blocks):
    work, _ = encoders(tmp_path / "work", num_processes=0)
    for owner in ("now", "a killed build"):
        blocks[2].save(work.raw(2, owner))
    encode_waiting(2, work, dtype="uint16", owner="now")
    assert work.block(2).exists()
    assert not work.raw(2, "now").exists()
    assert work.raw(2, "a killed build").exists()
    encode_waiting(2, work, dtype="uint16", owner="now")  # nothing waits
