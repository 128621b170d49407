"""The text of a past step: what was trained on, and a loss equal to the logged one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lmtrain.cli.commands.audit import audit
from lmtrain.cli.commands.data import data
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.ledger import read_ledger
from tests import tiny

STEPS, SEQUENCES, CONTEXT = 6, 8, 96  # documents have 512 tokens
MASKED = ["packing=contiguous", "packing.document_mask=true"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run in one piece, `whole`, and of the same on two ranks with documents in rows."""
    folder = tmp_path_factory.mktemp("trained")
    batch = [f"batch.context_tokens={CONTEXT}", f"batch.tokens_per_step={SEQUENCES * CONTEXT}"]
    words = [*batch, f"budget.steps={STEPS}", "callbacks.checkpoint.every_steps=3", "callbacks.checkpoint.keep_last=9"]
    for name, more, num_ranks in (("whole", [], 1), ("masked", [*MASKED, "trainer.devices=2"], 2)):
        done = tiny.train(folder, *words, f"run.name={name}", *more, num_ranks=num_ranks)
        assert done.returncode == 0, done.stderr
    return folder / "runs"


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert data(["show", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", ["whole", "masked"])
def test_the_weights_before_a_step_give_its_text_the_logged_loss(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(capsys, str(runs / name), "--step", "4")
    documents = found["documents"]
    assert found["scored_by_step"] == 3
    assert {one["sequence"] for one in documents} == set(range(SEQUENCES))
    assert sum(one["num_tokens"] for one in documents) == SEQUENCES * CONTEXT
    assert {one["rank"] for one in documents} == ({0} if name == "whole" else {0, 1})
    nats = sum(one["nats_per_token"] * one["num_learned"] for one in documents if one["num_learned"])
    mean = nats / sum(one["num_learned"] for one in documents)
    assert mean == pytest.approx(tiny.losses(runs / name)[4], rel=1e-5)  # fp32 sums in another order
    losses = [one["nats_per_token"] for one in documents if one["num_learned"]]
    assert losses == sorted(losses, reverse=True)


def _audited(run: Path, step: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert audit([str(run), "--step", str(step), "--json"]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.distributed
def test_an_audit_counts_the_documents_of_the_very_step_over_all_ranks(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = [one["num_tokens"] for one in shown(capsys, str(runs / "masked"), "--step", "2")["documents"]]
    found = json.loads(_audited(runs / "masked", 2, capsys))
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    heads_times_widths = 2 * 32  # of two layers with one head
    assert found["flops"]["attention scores"]["batch"] == pytest.approx(12 * heads_times_widths * pairs)
    assert found["batch"]["documents"] == len(lengths) > SEQUENCES
    assert found["pace"]["num_devices"] == 2
    assert 0 < found["mfu"]["this batch"] < 1
    steps = [json.loads(_audited(runs / "masked", step, capsys))["flops"] for step in range(1, STEPS + 1)]
    flops = sum(group["batch"] for step in steps for group in step.values())
    assert read_ledger(runs / "masked").own.flops == pytest.approx(flops, rel=1e-12)


@pytest.mark.slow
def test_weights_that_have_learned_from_the_step_say_so_and_a_forks_first_ones_have_not(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert data(["show", str(runs / "whole"), "--step", "2"]) == 0
    learned = "losses by the weights of step 3, which have learned from this one: no older checkpoint is kept"
    assert learned in capsys.readouterr().out
    shutil.copytree(runs / "whole", tmp_path / "fork")
    shutil.rmtree(tmp_path / "fork/checkpoints/step_00000003")
    fork = {"checkpoint": str(runs / "whole/checkpoints/step_00000003"), "step": 3}
    (tmp_path / "fork/fork.json").write_text(json.dumps(fork))
    words = [str(tmp_path / "fork"), "--step", "4", "--data", json.loads((runs / "whole/run.json").read_text())["data"]]
    assert shown(capsys, *words)["scored_by_step"] == 3


@pytest.mark.slow
def test_wrong_steps_and_changed_data_are_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=r"--step: must be from 1 to 6.*got 7"):
        data(["show", str(runs / "whole"), "--step", "7"])
    with pytest.raises(DataError, match=r"is no longer in .*--data FOLDER"):
        data(["show", str(runs / "whole"), "--step", "1", "--data", str(tmp_path / "nowhere")])
    assert data(["show", str(runs / "whole"), "--step", "1", "--most", "2"]) == 0
    printed = capsys.readouterr().out
    assert "more; --most" in printed
