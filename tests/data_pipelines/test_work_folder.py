import pytest

from data_pipelines.work_folder import Commit, End, WorkFolder
from lmtrain.data.manifest import Shard
from lmtrain.data.shard_writer import Written
from lmtrain.errors import DataError
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from lmtrain.tokenizers.loading import load_tokenizer


@pytest.fixture
def work(tmp_path):
    work = WorkFolder(tmp_path)
    assert not work.begin("a question")
    return work


def test_work_of_the_same_question_is_gone_on_from_without_half_written_files(work, tmp_path):
    for path in (work.block(3), work.raw(4), work.block(5).with_name(".00000005.77")):
        path.write_bytes(b"x")
    assert work.begin("a question")
    assert [path.name for path in (tmp_path / ".work" / "blocks").iterdir()] == ["00000003"]


def test_a_killed_build_s_worker_may_finish_while_the_next_build_begins(work, monkeypatch):
    work.raw(4, "a killed build").write_bytes(b"x")
    list_files = type(work.folder).iterdir

    def list_and_lose(folder):
        for path in list(list_files(folder)):
            path.unlink()
            yield path

    monkeypatch.setattr(type(work.folder), "iterdir", list_and_lose)
    assert work.begin("a question")


def test_work_of_another_question_is_cleared(work, tmp_path):
    (tmp_path / "train_00000.ds").write_bytes(b"x")
    work.block(1).write_bytes(b"x")
    work.write_end(End(2, {}))
    assert not work.begin("another question")
    assert work.read_end() is None
    assert [path.name for path in tmp_path.iterdir()] == [".work"]
    assert not work.block(1).exists()


def test_a_commit_and_an_end_are_read_as_they_were_written(work):
    assert (work.read_commit(), work.read_end()) == (None, None)
    closed = Shard("train_00000.ds", 5, 2, "s", "i")
    opened = Shard("train_00001.ds", 3, 1, "t", "j", mask_sha256="m")
    written = {"train": Written((closed,), opened), "test": Written()}
    commit = Commit(7, "chain", written, {"train": 8, "test": 0})
    work.write_commit(commit)
    work.write_end(End(9, {"empty": 2}))
    assert work.read_commit() == commit
    assert work.read_end() == End(9, {"empty": 2})
    work.forget_end()
    assert work.read_end() is None


def test_blocks_that_are_in_the_shards_are_forgotten(work):
    for number in range(5):
        work.block(number).write_bytes(b"x")
    work.forget_blocks(1, 4)
    assert [work.block(number).exists() for number in range(5)] == [True, False, False, False, True]


def test_a_tokenizer_is_there_whole_or_not_at_all(work, tmp_path):
    (tmp_path / ".work" / "tokenizer").mkdir()
    (tmp_path / ".work" / "tokenizer" / "half").write_bytes(b"x")
    work.save_tokenizer(ByteLevelTokenizer())
    assert load_tokenizer(tmp_path / "tokenizer").vocab_size == 257
    assert not (tmp_path / "tokenizer" / "half").exists()


def test_the_tokenizer_is_read_once_and_forgotten_with_the_rest(work, tmp_path):
    ByteLevelTokenizer().save(tmp_path / "tokenizer")
    tokenizer = work.tokenizer()
    assert work.tokenizer() is tokenizer
    work.clear()
    with pytest.raises(DataError, match="has no tokenizer"):
        work.tokenizer()


def test_a_half_cleared_work_folder_is_known_to_be_done(work, tmp_path):
    assert not work.is_done()
    (tmp_path / ".work").rename(tmp_path / ".done")
    (tmp_path / ".done" / "identity.json").unlink()
    assert work.is_done()
    work.finish()
    assert list(tmp_path.iterdir()) == []
