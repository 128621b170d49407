"""Kill -9 at random moments of a preparation, with its processes: the next one goes on to the same bytes."""

import os
import random
import subprocess
import sys

import pytest

from data_pipelines.verify import problems
from tests.data_pipelines.poems import files

SLOW = """
import sys, time
from data_pipelines.prepare import prepare
from data_pipelines.stages import blocks as spool
from data_pipelines.stages.train_tokenizer import BytePairSpec
from tests.data_pipelines.poems import Poems

spool.BLOCK_BYTES = 20_000

class Slow(Poems):
    def documents(self):
        for document in super().documents():
            time.sleep(0.001)
            print(end=".", flush=True)  # the test kills at one of these
            yield document

prepare(source=Slow(800), tokenizer=BytePairSpec(vocab_size=300, sample_bytes=100_000), root=sys.argv[1],
        validation_fraction=0.1, test_fraction=0.1, shard_tokens=50_000, num_processes=int(sys.argv[2]))
"""


def start(root, num_processes):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", SLOW, str(root), str(num_processes)]
    return subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    with start(root, 0) as process:
        assert process.wait() == 0
    return files(root)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [0, 2])
def test_kill_minus_nine_at_random_moments(tmp_path, undisturbed, num_processes):
    chance, kills = random.Random(num_processes), 0
    while True:
        with start(tmp_path / "killed", num_processes) as process:
            assert process.stdout is not None
            process.stdout.read(chance.randint(40, 700) + 100 * kills)
            try:
                process.wait(timeout=chance.uniform(0, 0.3))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
                continue
        assert process.returncode == 0
        break
    assert kills > 0
    assert files(tmp_path / "killed") == undisturbed


@pytest.mark.faults
def test_of_two_preparations_at_once_one_waits_and_finds_the_other_s(tmp_path):
    with start(tmp_path, 0) as one, start(tmp_path, 0) as other:
        assert (one.wait(), other.wait()) == (0, 0)
    (folder,) = tmp_path.iterdir()
    assert list(problems(folder)) == []
