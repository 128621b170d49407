"""From a base to a model that converses: `task=sft`, as docs/talk.md says it."""

import json
from pathlib import Path

import pytest

from lmtrain.cli.commands.evaluate import evaluate
from lmtrain.tokenizers.loading import load_tokenizer
from tests import forked, tiny
from tests.faults.test_resume import killed

DATA = ["source=made_conversations", "source.num_conversations=120", "data.folder.references=false"]
HELD_OUT = ["data.folder.validation_fraction=0.1", "data.folder.test_fraction=0.1"]
BYTES = ["tokenizer=byte_level", "tokenizer.vocab_size=512", "tokenizer.chat=true"]


def train(folder: Path, *words: str, exit_code: int = 0) -> str:
    ended = forked.run(
        tiny.PROJECT / "train.py",
        [*tiny.QUIET, *DATA, *HELD_OUT, "run.log_every_steps=1", *words],
        folder=folder,
        environment=tiny.environment(),
    )
    assert ended.returncode == exit_code, ended.stderr
    return ended.stdout


@pytest.mark.faults
def test_a_run_killed_while_it_learns_conversations_goes_on_with_the_base_s_own_settings(
    tmp_path: Path, capsys
) -> None:
    train(tmp_path, *tiny.MODEL, *tiny.BATCH, *BYTES, "run.name=base", "budget.steps=2", "optimizer.lr=0.02")
    words = ["init_from=runs/base", "task=sft", "budget.steps=3", "callbacks.checkpoint.every_steps=1", *killed(1)]
    said = train(tmp_path, *words, "run.name=taught", exit_code=-9)
    train(tmp_path, *words, "run.name=taught")
    train(tmp_path, *words[:-1], "+callbacks.kill=null", "run.name=untouched")
    assert tiny.losses(tmp_path / "runs/taught") == tiny.losses(tmp_path / "runs/untouched")
    (share,) = [line for line in said.splitlines() if line.startswith("loss on ")]
    assert 20 < float(share.split()[2].removesuffix("%")) < 60
    run = tmp_path / "runs" / "taught"
    before = load_tokenizer(tmp_path / "runs" / "base" / "tokenizer").fingerprint
    assert load_tokenizer(run / "tokenizer").fingerprint == before
    points = [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum("train/loss" in one for one in points) == 3
    assert evaluate([str(run), "--made", "7", "--num-new-tokens", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["answers/all"]["num_items"] == 7
