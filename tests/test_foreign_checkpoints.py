"""Checkpoints from elsewhere that would run a command: their manifests are right, and every verb refuses them."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as sharded_checkpoint
from torch.distributed.checkpoint.api import CheckpointException

from lmtrain.cli.main import serve
from lmtrain.errors import EXIT_ENVIRONMENT
from lmtrain.parallel.shard_writing import SHARDED
from lmtrain.training.checkpointing.checkpoint_io import STATE
from tests import tiny
from tests.hostile_pickles import ATTACKS, in_a_value, in_metadata, in_metadata_of_a_rank, in_one_file, make_hostile

Attack = Callable[[Path, Path], None]
MIXTRAL = [
    "model=mixtral_tiny",
    "model.width=32",
    "model.num_layers=2",
    "model.feed_forward_width=48",
    "model.num_heads=2",
]
WORDS = [
    *MIXTRAL,
    "model.experts.num_experts=5",
    "data=synthetic",
    "data.folder.num_tokens=60000",
    "tokenizer=byte_level",
    *tiny.BATCH,
    *tiny.QUIET,
    "strategy=single",
]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny run and return the folder of its command."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert serve("train", [*WORDS, "budget.steps=2", "run.name=a"], program="lmtrain train") == 0
    return folder


@pytest.fixture
def hostile(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Attack], Path]:
    """Return a function that attacks a copy of the run, and returns its one checkpoint."""
    monkeypatch.chdir(tmp_path)

    def attacked(attack: Attack) -> Path:
        shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
        *older, newest = sorted((tmp_path / "runs/a/checkpoints").glob("step_*"))
        for one in older:
            shutil.rmtree(one)
        make_hostile(newest, attack, tmp_path / "witness")
        return newest

    return attacked


@pytest.mark.parametrize("attack", [in_metadata, in_metadata_of_a_rank, in_a_value])
def test_torch_itself_runs_the_command(
    attack: Attack, hostile: Callable[[Attack], Path], trained: Path, tmp_path: Path
) -> None:
    folder = hostile(attack)
    original = trained / "runs/a/checkpoints" / folder.name / STATE
    state = {"state_dict": torch.load(original, weights_only=True)["state_dict"]}
    with contextlib.suppress(CheckpointException):
        sharded_checkpoint.load(state, checkpoint_id=folder / SHARDED, no_dist=True)
    assert (tmp_path / "witness").exists()


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("generate", ["runs/a", "--num-new-tokens", "1"]),
        ("export", ["hf", "runs/a", "out"]),
        ("train", [*WORDS, "budget.steps=2", "init_from=runs/a", "run.name=b"]),
    ],
    ids=["generate", "export", "init_from"],
)
def test_every_verb_refuses_and_the_command_is_not_run(
    attack: Attack, verb: str, words: list[str], hostile: Callable[[Attack], Path],
    tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hostile(attack)
    assert serve(verb, words, program=f"lmtrain {verb}") == EXIT_ENVIRONMENT
    assert "checkpoint" in capfd.readouterr().err
    assert not (tmp_path / "witness").exists()


def test_a_run_does_not_go_on_from_one(hostile: Callable[[Attack], Path], tmp_path: Path) -> None:
    hostile(in_one_file)
    words = [*WORDS, "budget.steps=3", "run.name=a"]
    assert serve("train", words, program="lmtrain train") == EXIT_ENVIRONMENT
    assert not (tmp_path / "witness").exists()
