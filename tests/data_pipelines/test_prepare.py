import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from data_pipelines.prepare import prepare
from data_pipelines.sources.python_stdlib import PythonStandardLibrary
from data_pipelines.sources.text_files import TextFiles
from data_pipelines.stages.train_tokenizer import ByteLevelSpec, BytePairSpec, FolderSpec
from lmtrain.data.shards import open_dataset
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from tests.data_pipelines.poems import Poems, files

SETTINGS = {"validation_fraction": 0.1, "test_fraction": 0.1, "shard_tokens": 2000}


def make(root, **settings):
    arguments = {"source": Poems(), "tokenizer": BytePairSpec(vocab_size=300), **SETTINGS, **settings}
    return prepare(root=str(root), **arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("data"))


def test_the_folder_is_named_after_its_source_and_alone(folder):
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert folder.name.startswith("poems-")


def test_two_builds_are_equal_to_the_byte(folder, tmp_path):
    assert files(make(tmp_path)) == files(folder)


def test_a_second_call_finds_the_first_in_one_line(folder, capsys):
    written = (folder / "dataset.json").stat().st_mtime_ns
    started = time.monotonic()
    assert make(folder.parent) == folder
    assert time.monotonic() - started < 0.2
    assert (folder / "dataset.json").stat().st_mtime_ns == written
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("tokens, prepared before)\n")


@pytest.mark.parametrize(
    "other",
    [
        {"source": Poems(version="2")},
        {"tokenizer": BytePairSpec(vocab_size=301)},
        {"validation_fraction": 0.2},
        {"test_fraction": 0.2},
        {"min_document_characters": 2},
        {"shard_tokens": 3000},
        {"token_dtype": "uint32"},
    ],
)
def test_another_question_gets_another_folder(folder, tmp_path, other):
    assert make(tmp_path, **other).name != folder.name


def test_how_it_was_encoded_makes_no_other_folder(folder):
    assert make(folder.parent, num_processes=2) == folder


def test_ones_own_three_files_just_work(tmp_path, capsys):
    notes = tmp_path / "notes"
    notes.mkdir()
    for number in range(3):
        text = "".join(f"On day {day} we walked {day * number} miles.\n\n" for day in range(500))
        (notes / f"{number}.md").write_text(text)
    source = TextFiles(paths=[str(notes)])
    dataset = open_dataset(prepare(source=source, tokenizer=BytePairSpec(vocab_size=4096), root=str(tmp_path / "data")))
    assert dataset.manifest.vocab_size == 4096
    assert all(dataset.split(name).num_tokens > 100 for name in ("train", "validation", "test"))
    told = capsys.readouterr().err
    assert "documents of more than a tenth of the text are cut into parts" in told
    assert "in use: so little text needs no more, see tokenizer.vocab_size" in told


@pytest.mark.slow
def test_the_standard_library_is_prepared_with_its_own_files_held_out(tmp_path):
    spec = BytePairSpec(vocab_size=4096)
    dataset = open_dataset(prepare(source=PythonStandardLibrary(), tokenizer=spec, root=str(tmp_path)))
    validation = dataset.split("validation")
    assert 0.02 < validation.text_bytes / sum(split.text_bytes for split in dataset.splits.values()) < 0.1
    assert 1.2 < dataset.manifest.references["validation"].xz_bits_per_byte < 2
    assert validation.text_bytes / validation.num_tokens > 3
    started = time.monotonic()
    prepare(source=PythonStandardLibrary(), tokenizer=spec, root=str(tmp_path))
    assert time.monotonic() - started < 1  # 0.1 s on an idle machine


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"validation_fraction": 1.2}, r"data\.folder\.validation_fraction=1\.2 is not a fraction"),
        ({"shard_tokens": 0}, r"data\.folder\.shard_tokens=0 must be positive; nearest valid: 1\."),
        (
            {"token_dtype": "uint8"},
            r"data\.folder\.token_dtype=uint8 is not uint16 or uint32\. Did you mean 'uint(16|32)'\?",
        ),
        (
            {"token_dtype": "uint16", "tokenizer": ByteLevelSpec(vocab_size=100_000)},
            r"token_dtype=uint16 holds 65,536 entries, tokenizer\.vocab_size=100000 has more; nearest valid: uint32\.",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_and_leave_nothing(tmp_path, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        make(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": Poems(count=0)}, "source poems gives no document"),
        ({"tokenizer": FolderSpec(path="nowhere", vocab_size=300)}, r"tokenizer\.path=nowhere has no tokenizer\.json"),
    ],
)
def test_data_that_cannot_be_is_refused_and_leaves_nothing(tmp_path, settings, message):
    with pytest.raises(DataError, match=message):
        make(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_damaged_is_refused_not_used(folder, tmp_path):
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    (copy / "train_00000.ds").write_bytes((folder / "train_00000.ds").read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train_00000\.ds has .* truncated, .*Delete the folder and prepare it again"):
        make(tmp_path)


def test_a_root_that_cannot_be_written_is_an_environment_problem(tmp_path):
    (tmp_path / "root").write_text("a file")
    with pytest.raises(EnvironmentProblem, match=r"cannot be written: .*data\.folder\.root"):
        make(tmp_path / "root")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_an_environment_problem_and_leaves_nothing(tmp_path, monkeypatch):
    import data_pipelines.build as build_module

    def full(*arguments):
        with Path("/dev/full").open("wb", buffering=0) as device:
            device.write(b"x")

    monkeypatch.setattr(build_module, "write_manifest", full)
    with pytest.raises(EnvironmentProblem, match=r"the disk is full: free some space, or set data\.folder\.root"):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []


SLOW_POEMS = """
import sys, time
from data_pipelines.prepare import prepare
from data_pipelines.stages.train_tokenizer import BytePairSpec
from tests.data_pipelines.poems import Poems

class SlowPoems(Poems):
    def documents(self):
        for number, document in enumerate(super().documents()):
            if number == 30:
                print("half-way", flush=True)
                time.sleep(60)
            yield document

prepare(
    source=SlowPoems(), tokenizer=BytePairSpec(vocab_size=300), root=sys.argv[1],
    validation_fraction=0.1, test_fraction=0.1, shard_tokens=2000,
)
"""


@contextmanager
def half_way(root):
    """Give a preparation, in a process of its own, that is half-way through its documents."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", SLOW_POEMS, str(root)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(arguments, stdout=pipe, stderr=nothing, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half-way\n"
        yield process


@pytest.mark.faults
def test_a_preparation_killed_half_way_leaves_no_folder_and_the_next_one_builds(folder, tmp_path):
    with half_way(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert files(make(tmp_path)) == files(folder)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.faults
def test_an_interrupted_preparation_leaves_nothing(tmp_path):
    with half_way(tmp_path) as process:
        process.send_signal(signal.SIGINT)
    assert list(tmp_path.iterdir()) == []
