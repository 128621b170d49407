"""A preparation killed or out of disk at any write continues to the same bytes."""

import contextlib
import errno
import io
import os
import shutil
import signal
from pathlib import Path

import pytest

from data_pipelines import build, shard_filler
from data_pipelines.prepare import prepare
from data_pipelines.stages import blocks
from data_pipelines.stages.stage import in_turn
from data_pipelines.stages.train_tokenizer import ByteLevelSpec
from lmtrain.data.manifest import References
from lmtrain.errors import EnvironmentProblem
from tests.data_pipelines.poems import Poems, files
from tests.full_disk import files_of_at_most

SETTINGS = {"validation_fraction": 0.1, "test_fraction": 0.1, "shard_tokens": 3000, "num_processes": 0}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1500)
    monkeypatch.setattr("data_pipelines.stages.split.SMALL_CORPUS_CHARACTERS", 100)
    monkeypatch.setattr(build, "compress", lambda *_: References(1, 1.0, 1.0))  # it takes most of the time


def one_by_one(source, stages, *, folder):
    """Send each document through the stages as it comes: an engine without batches."""
    del folder
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
        for name in ("rename", "replace", "unlink", "write_text"):
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


def interrupted(root):
    source = Poems()

    def broken():
        yield from list(Poems.documents(source))[:40]
        raise KeyboardInterrupt

    source.documents = broken
    with pytest.raises(KeyboardInterrupt):
        make(root, source=source)
    assert visible(root) == []


def test_what_is_encoded_is_not_encoded_again_unless_it_was_damaged(tmp_path, monkeypatch):
    expected = files(make(tmp_path / "undisturbed"))
    interrupted(tmp_path / "root")
    kept = sorted((tmp_path / "root").glob(".*.building/.work/blocks/????????"))
    kept[2].write_bytes(kept[2].read_bytes()[:-1])
    encode, encoded = shard_filler.encode_documents, []
    monkeypatch.setattr(
        shard_filler, "encode_documents", lambda block, *rest, **o: encoded.append(block) or encode(block, *rest, **o)
    )
    assert files(make(tmp_path / "root")) == expected
    assert len(list((tmp_path / "root").iterdir())) == 1
    all_blocks = len(encoded) + len(kept) - 1
    assert 5 < len(kept) < all_blocks < 30


@pytest.mark.faults
@pytest.mark.parametrize("num_bytes", [100, 1000, 3000, 5500])
def test_a_disk_that_takes_no_more_is_one_line_and_the_next_build_goes_on(tmp_path, num_bytes):
    expected = files(make(tmp_path / "undisturbed"))
    with (
        files_of_at_most(num_bytes),
        contextlib.redirect_stderr(io.StringIO()),  # pytest's own is a file
        pytest.raises(EnvironmentProblem, match="cannot be written: file too large: raise the limit") as refused,
    ):
        make(tmp_path / "root")
    assert "\n" not in str(refused.value)
    assert visible(tmp_path / "root") == []
    assert files(make(tmp_path / "root")) == expected


@pytest.mark.faults
@pytest.mark.parametrize("moment", range(1, 60, 9))
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
