import json
import shlex

import pytest

from lmtrain.cli.commands import tune_lr as verb
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.execution.tried_run import TriedRun, checked_config
from lmtrain.tracking.run_log import Point
from tests.tiny import DATA, QUIET, TINY


def run_of(losses, *, exit_code=0, lr=0.025):
    points = [
        Point(0.0, step, 0, {"train/lr": lr * 0.001 * 1.122**step, "train/loss": loss})
        for step, loss in enumerate(losses)
    ]
    return TriedRun(exit_code=exit_code, points=tuple(points), words="lmtrain: no such data")


def asked(monkeypatch, tmp_path, losses, *words):
    monkeypatch.setattr(verb, "try_run", lambda *args, **settings: run_of(losses))
    return verb.tune_lr([*TINY, f"run.root={tmp_path}", *words], program="lmtrain tune")


def test_a_falling_loss_gives_a_command_with_all_rates_and_a_plot(monkeypatch, tmp_path, capsys):
    losses = [5.0] * 40 + [5.0 - 0.1 * step for step in range(30)] + [2.0 + step for step in range(30)]
    assert asked(monkeypatch, tmp_path, losses, "optimizer.lr=0.025", "budget.tokens=1M", "--json") == 0
    printed = capsys.readouterr()
    said = "100 steps of training at rising learning rates (--steps); budget.tokens=1M is of the command at the end"
    assert said in printed.err
    found = json.loads(printed.out)
    lr = found["suggested_lr"]
    assert 0.025 * 0.001 * 1.122**38 < lr < found["lowest_loss_lr"]
    assert f"optimizer.lr={lr:.3g} optimizer.embedding_lr={lr * 0.06 / 0.025:.3g}" in found["command"]
    assert found["command"].count("optimizer.lr=") == 1
    assert "smoothed loss over learning rates" in (tmp_path / ".tune").glob("*.html").__next__().read_text()
    assert [path.name for path in tmp_path.iterdir()] == [".tune"], "no run"


NANO = ["model=nano", "model.depth=2", "optimizer=muon", "batch.tokens_per_step=32768"]
WIDE = ["model=llama_tiny", "optimizer=muon", "optimizer.head_lr=0.04", "scaling.base_width=64", *QUIET]


@pytest.mark.parametrize("words", [["scaling=depth_dial", *NANO, *DATA, *QUIET], ["scaling=width_transfer", *WIDE]])
def test_under_scaling_the_command_trains_at_the_rate_found(monkeypatch, tmp_path, capsys, words):
    scaled = checked_config(words).optimizer.values
    losses = [5.0] * 40 + [5.0 - 0.1 * step for step in range(30)] + [2.0 + step for step in range(30)]
    monkeypatch.setattr(verb, "try_run", lambda *args, **settings: run_of(losses, lr=scaled["lr"]))
    assert verb.tune_lr([*words, f"run.root={tmp_path}", "--json"], program="lmtrain tune") == 0
    found = json.loads(capsys.readouterr().out)
    trained = checked_config(shlex.split(found["command"])[2:]).optimizer.values
    shares = {name: trained[name] / scaled[name] for name in ("lr", "embedding_lr", "head_lr", "vector_lr")}
    assert 0.001 * 1.122**38 < shares["lr"] < 0.001 * 1.122**70
    assert shares == pytest.approx(dict.fromkeys(shares, shares["lr"]), rel=0.01), "typed with three digits"
    typed = next(word for word in found["command"].split() if word.startswith("optimizer.lr="))
    assert typed == f"optimizer.lr={found['suggested_lr']:.3g}"


def test_a_flat_loss_suggests_nothing_and_ends_with_1(monkeypatch, tmp_path, capsys):
    assert asked(monkeypatch, tmp_path, [5.0 + 0.01 * (step % 2) for step in range(100)]) == 1
    assert "no suggestion: the loss never fell by more than its noise" in capsys.readouterr().out


def test_a_wrong_range_and_a_run_that_did_not_train_are_refused(monkeypatch, tmp_path):
    with pytest.raises(ConfigurationError, match=r"--steps=3 is too short for a curve"):
        asked(monkeypatch, tmp_path, [], "--steps=3")
    with pytest.raises(ConfigurationError, match=r"--lowest=2 is not above 0 and below --highest=1"):
        asked(monkeypatch, tmp_path, [], "--lowest=2", "--highest=1")
    with pytest.raises(EnvironmentProblem, match="no such data"):
        asked(monkeypatch, tmp_path, [])
