"""A preparation killed or out of disk at any write continues to the same bytes."""

import errno
import os
import pickle
import random
import resource
import shutil
import signal
from pathlib import Path

import pytest

from data_pipelines import build as finish
from data_pipelines import shard_filler
from data_pipelines.prepare import prepare
from data_pipelines.sources.base import Document
from data_pipelines.stages import blocks as spool_module
from data_pipelines.stages import encoders
from data_pipelines.stages.stage import in_turn
from data_pipelines.stages.train_tokenizer import ByteLevelSpec
from data_pipelines.work_folder import Commit, End, WorkFolder
from lmtrain.data.manifest import References, Shard
from lmtrain.data.shard_writer import Written
from lmtrain.errors import EnvironmentProblem
from tests.data_pipelines.poems import Poems, files
from tests.small_disk import mount_small_disk, reason_for_none

SETTINGS = {"validation_fraction": 0.1, "test_fraction": 0.1, "shard_tokens": 3000, "num_processes": 0}
HELD = {"BLOCK_BYTES": 1500, "COMMIT_BLOCKS": 3}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(spool_module, "BLOCK_BYTES", HELD["BLOCK_BYTES"])
    monkeypatch.setattr(shard_filler, "COMMIT_BLOCKS", HELD["COMMIT_BLOCKS"])
    monkeypatch.setattr("data_pipelines.stages.split.SMALL_CORPUS_CHARACTERS", 100)
    monkeypatch.setattr(finish, "compress", lambda *_: References(1, 1.0, 1.0))  # it takes most of the time


def one_by_one(source, stages, *, folder):
    """Send each document through the stages as it comes: an engine without batches."""
    assert folder.name == "stages"
    return in_turn(stages, source.documents())


def make(root, *, source=None, **settings):
    asked = {"tokenizer": ByteLevelSpec(), "engine": one_by_one, **SETTINGS, **settings}
    return prepare(source=source or Poems(), root=str(root), **asked)


def visible(root):
    return [path.name for path in root.iterdir() if not path.name.startswith(".")]


class Counter:
    """Ends this process, as kill -9 does, at the n-th thing that is about to reach the disk."""

    def __init__(self, wanted):
        self.left = wanted

    def before(self, function):
        def counted(*arguments, **options):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return counted


def killed_at(root, moment, **settings):
    """Build in a process of its own that is killed at a moment; False: it was done before that."""
    child = os.fork()
    if child == 0:
        counter = Counter(moment)
        for name in ("rename", "unlink", "write_text"):
            setattr(Path, name, counter.before(getattr(Path, name)))
        os.fsync = counter.before(os.fsync)
        shutil.rmtree = counter.before(shutil.rmtree)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        make(root, **settings)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.mark.faults
@pytest.mark.parametrize(("budget", "stride"), [(None, 7), (9000, 5), pytest.param(None, 2, marks=pytest.mark.slow)])
def test_a_build_killed_at_any_write_goes_on_to_the_same_bytes(tmp_path, budget, stride):
    expected = files(make(tmp_path / "undisturbed", token_budget=budget))
    moments = 0
    for moment in range(1, 1000, stride):
        root = tmp_path / f"{moment}"
        if not killed_at(root, moment, token_budget=budget):
            break
        moments += 1
        assert all((root / name / "dataset.json").exists() for name in visible(root))
        if moment % 3 == 1:  # and once more, while it goes on
            killed_at(root, 1 + moment % 7, token_budget=budget)
        assert files(make(root, token_budget=budget)) == expected
        assert len(list(root.iterdir())) == 1
        shutil.rmtree(root)
    assert moments > 60 / stride


@pytest.mark.faults
def test_a_build_killed_again_and_again_gets_there(tmp_path):
    expected = files(make(tmp_path / "undisturbed"))
    chance = random.Random(5)
    kills = 0
    while killed_at(tmp_path / "killed", chance.randint(10, 50 + kills)):
        kills += 1
    assert 1 < kills < 100
    assert files(make(tmp_path / "killed")) == expected


def test_what_is_encoded_is_not_encoded_again(tmp_path, monkeypatch):
    source = Poems()

    def broken():
        yield from list(Poems.documents(source))[:40]
        raise KeyboardInterrupt

    source.documents = broken
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, source=source)
    encoded = []
    encode = encoders.encode_block
    monkeypatch.setattr(
        encoders, "encode_block", lambda block, *rest, **o: encoded.append(block.number) or encode(block, *rest, **o)
    )
    make(tmp_path)
    assert encoded == sorted(encoded)
    assert 0 < len(encoded) < 10
    assert encoded[0] > 5


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_work_that_was_damaged_meanwhile_is_done_again(tmp_path, capsys, damage):
    expected = files(make(tmp_path / "undisturbed"))
    interrupted(tmp_path / "root")
    (building,) = (tmp_path / "root").glob(".*.building")
    shard = building / "train_00000.ds"
    content = bytearray(shard.read_bytes())
    if damage == "flip":
        content[100] ^= 1
        shard.write_bytes(content)
    elif damage == "cut":
        shard.write_bytes(content[:50])
    else:
        shard.unlink()
    for block in sorted((building / ".work" / "blocks").iterdir())[:1]:
        block.write_bytes(block.read_bytes()[:-1])
    assert files(make(tmp_path / "root")) == expected
    assert "starting again" in capsys.readouterr().err


def interrupted(root):
    source = Poems()

    def broken():
        yield from list(Poems.documents(source))[:40]
        raise KeyboardInterrupt

    source.documents = broken
    with pytest.raises(KeyboardInterrupt):
        make(root, source=source)


def test_a_source_that_gives_other_text_starts_anew(tmp_path, capsys):
    interrupted(tmp_path / "root")

    class Others(Poems):
        def documents(self):
            yield from (Document(document.id, document.text.upper()) for document in super().documents())

    others = files(make(tmp_path / "root", source=Others()))
    assert "the source gives other text than before: starting again" in capsys.readouterr().err
    assert others == files(make(tmp_path / "undisturbed", source=Others()))


@pytest.mark.faults
def test_an_interrupted_preparation_shows_nothing_and_the_next_one_goes_on(tmp_path):
    expected = files(make(tmp_path / "undisturbed"))
    root = tmp_path / "root"
    interrupted(root)
    assert visible(root) == []
    assert files(make(root)) == expected
    assert len(list(root.iterdir())) == 1


def with_small_files(root, num_bytes):
    """Build in a process of its own whose files may not grow beyond so many bytes; return what it said."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            make(root)
        except EnvironmentProblem as problem:
            os.write(write, str(problem).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as said:
        return said.read()


@pytest.mark.faults
@pytest.mark.parametrize("num_bytes", [100, 1000, 3000, 5500, 6400])
def test_a_disk_that_takes_no_more_is_one_line_and_the_next_build_goes_on(tmp_path, num_bytes):
    expected = files(make(tmp_path / "undisturbed"))
    said = with_small_files(tmp_path / "root", num_bytes)
    assert "cannot be written: a file may not grow so large here" in said
    assert "the same command goes on" in said
    assert said.count("\n") == 0
    assert visible(tmp_path / "root") == []
    assert files(make(tmp_path / "root")) == expected
    assert len(list((tmp_path / "root").iterdir())) == 1


def on_small_disk(folder, room_bytes):
    """Build on a disk with so much room and again on one with plenty; return what was said, and the second's files."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        mount_small_disk(folder, num_bytes=1 << 20)
        (folder / "filler").write_bytes(bytes((1 << 20) - room_bytes))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        said = "nothing"
        try:
            make(folder / "root")
        except EnvironmentProblem as problem:
            said = str(problem)
        (folder / "filler").unlink()
        os.write(write, pickle.dumps((said, files(make(folder / "root")))))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        content = told.read()
    os.waitpid(child, 0)
    return pickle.loads(content)


@pytest.mark.faults
@pytest.mark.parametrize("room_bytes", [16 << 10, 32 << 10, 48 << 10])
def test_a_real_disk_that_is_full_is_one_line_and_the_next_build_goes_on(tmp_path, room_bytes):
    (folder := tmp_path / "disk").mkdir()
    if reason := reason_for_none(folder):
        pytest.skip(reason)
    said, second = on_small_disk(folder, room_bytes)
    assert "the disk is full: free some space" in said
    assert "\n" not in said
    assert second == files(make(tmp_path / "undisturbed"))


@pytest.mark.faults
@pytest.mark.parametrize("moment", range(1, 60, 6))
def test_a_disk_full_at_any_write_loses_nothing(tmp_path, monkeypatch, moment):
    expected = files(make(tmp_path / "undisturbed"))
    left, fsync = [moment], os.fsync

    def full(descriptor):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentProblem, match="the disk is full: free some space"):
            make(tmp_path / "root")
    assert visible(tmp_path / "root") == []
    assert files(make(tmp_path / "root")) == expected


@pytest.fixture
def work(tmp_path):
    work = WorkFolder(tmp_path)
    assert not work.begin("a question")
    return work


def test_a_killed_build_s_worker_may_finish_while_the_next_build_begins(work, monkeypatch):
    work.raw(4, "a killed build").write_bytes(b"x")
    list_files = type(work.folder).iterdir

    def list_and_lose(folder):
        for path in list(list_files(folder)):
            path.unlink()
            yield path

    monkeypatch.setattr(type(work.folder), "iterdir", list_and_lose)
    assert work.begin("a question")


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


def test_a_half_cleared_work_folder_is_known_to_be_done(work, tmp_path):
    assert not work.is_done()
    (tmp_path / ".work").rename(tmp_path / ".done")
    (tmp_path / ".done" / "identity.json").unlink()
    assert work.is_done()
    work.finish()
    assert list(tmp_path.iterdir()) == []
