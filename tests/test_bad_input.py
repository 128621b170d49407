"""Each wrong command gives one message with the key, the value, the rule and the nearest fix, and loses nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lmtrain.cli.main import serve
from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DATA, EXIT_ENVIRONMENT
from tests.tiny import BATCH, DATA, MODEL, QUIET

Attempt = Callable[..., tuple[int, str]]


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Attempt:
    """Return a function that types a tiny training command and returns its exit code and what it said on stderr."""
    monkeypatch.chdir(tmp_path)

    def type_command(*words: str) -> tuple[int, str]:
        capfd.readouterr()
        data = [] if any(word.startswith("data=") for word in words) else DATA
        base = [*MODEL, *data, *BATCH, *QUIET, "budget.steps=2", "run.name=a"]
        code = serve("train", [*base, *words], program="python train.py")
        said = capfd.readouterr().err
        return code, "\n".join(line for line in said.splitlines() if line.startswith("lmtrain: "))

    return type_command


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("optimizer.lrr=1", ["optimizer.lrr=1", "Did you mean 'optimizer.lr=1'?"]),
        ("model._target_=lmtrain.models.llama.Lama", ["has no Lama", "Did you mean 'Llama'?"]),
        ("batch.micro_batch_sequences=3", ["batch.tokens_per_step=256 is not a multiple of 96", "Did you mean 288?"]),
        ("tokenizer.vocab_size=200", ["tokenizer.vocab_size", "257", "200"]),
        ("resume=must", ["resume=must", "use resume=auto"]),
        ("strategy=ddp trainer.devices=2 trainer.num_nodes=2", ["trainer.num_nodes: must be 1 without a launcher"]),
        ("strategy=fsdp strategy.tensor_size=2", ["tensor_size is a setting of strategy=fsdp_tensor, mesh, tensor"]),
        ("strategy=tensor strategy.shard_size=2", ["unknown key strategy.shard_size", "hsdp, mesh"]),
        ("=3", ["GROUP=OPTION"]),
        (
            "model.value_embedding_layers=3",
            ["must be a list, got 3. Did you mean 'model.value_embedding_layers=[3]'"],
        ),
        ("run.cache=a_file", ["run.cache=a_file is a file"]),
        ("run.root=s3://bucket/runs", ["run.root: must be a folder", "got s3://bucket/runs"]),
        ("profiler=torch", ["profiler must record at most 2 steps, got 5"]),
        ("data.folder.root=s3://bucket/data", ["folder of this machine"]),
        ("trainer.cpu_threads=0", ["trainer.cpu_threads=0 is below 1. Did you mean 1"]),
    ],
)
def test_a_wrong_setting_is_refused_with_the_nearest_fix(word: str, parts: list[str], attempt: Attempt) -> None:
    Path("a_file").touch()
    code, message = attempt(*word.split())
    assert code == EXIT_CONFIGURATION, message
    assert len(message.splitlines()) == 1
    for part in parts:
        assert part in message


def write_binary(folder: Path) -> None:
    """Write a file that is no text."""
    (folder / "noise.txt").write_bytes(bytes(range(256)) * 40)


def write_empty(folder: Path) -> None:
    """Write a file without a byte."""
    (folder / "noise.txt").write_bytes(b"")


@pytest.mark.parametrize(
    ("prepare", "parts"),
    [
        (lambda folder: None, ["noise.txt", "does not exist"]),
        (write_binary, ["noise.txt", "text"]),
        (write_empty, ["noise.txt", "empty"]),
    ],
)
def test_data_that_is_missing_empty_or_binary_is_refused(
    prepare: Callable[[Path], None], parts: list[str], attempt: Attempt, tmp_path: Path
) -> None:
    prepare(tmp_path)
    words = ["source=files", "source.paths=[noise.txt]", "tokenizer=byte_level", "tokenizer.vocab_size=257"]
    code, message = attempt("data=prepared", *words)
    assert code == EXIT_DATA, message
    for part in parts:
        assert part in message


def test_shards_of_another_tokenizer_are_refused(attempt: Attempt, tmp_path: Path) -> None:
    assert attempt()[0] == 0
    shards = next((tmp_path / "data").glob("synthetic*"))
    shutil.copytree(shards, tmp_path / "mine")
    meta = next((tmp_path / "mine/tokenizer").glob("*meta*"))
    content = json.loads(meta.read_text())
    meta.write_text(json.dumps({**content, "vocab_size": 300}))
    words = ["data=shards", "data.folder.path=mine", "tokenizer=byte_level", "tokenizer.vocab_size=512", "run.name=b"]
    code, message = attempt(*words)
    assert code == EXIT_DATA, message
    assert "tokenizer" in message


def test_a_full_disk_is_refused_before_training(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    code, message = attempt()
    assert code == EXIT_ENVIRONMENT, message
    assert "free some space" in message


def test_a_checkpoint_of_another_model_and_a_spent_budget_are_refused_and_nothing_is_lost(
    attempt: Attempt, tmp_path: Path
) -> None:
    assert attempt()[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "runs/a/checkpoints").rglob("*") if path.is_file()}
    metrics = (tmp_path / "runs/a/metrics.jsonl").read_bytes()
    code, message = attempt("model.feed_forward_width=128")
    assert code == EXIT_CONFIGURATION
    assert "model.feed_forward_width=128, there 64" in message
    assert "run.name" in message
    code, message = attempt("budget.steps=1")
    assert code == EXIT_CONFIGURATION
    assert "budget.steps" in message
    assert "already spent" in message
    assert "is at step 2" in message
    after = {path: path.read_bytes() for path in (tmp_path / "runs/a/checkpoints").rglob("*") if path.is_file()}
    assert after == before
    assert (tmp_path / "runs/a/metrics.jsonl").read_bytes() == metrics
