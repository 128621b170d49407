"""A learning rate found by a short training, which is replaced by known curves here."""

import json
import shlex

import pytest

from lmtrain.cli.commands import tune as command
from lmtrain.cli.commands.tune import checked_config, trained, tune
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from tests.tiny import DATA, QUIET, TINY

FALLING = [5.0] * 40 + [5.0 - 0.1 * step for step in range(30)] + [2.0 + step for step in range(30)]


def tune_lr(monkeypatch, tmp_path, losses, *words, lr=0.025, config=TINY):
    points = [(lr * 0.001 * 1.122**step, loss) for step, loss in enumerate(losses)]
    monkeypatch.setattr(command, "trained", lambda _: points)
    return tune(["lr", *config, f"run.root={tmp_path}", *words])


def test_a_falling_loss_gives_a_command_with_all_rates_and_a_plot(monkeypatch, tmp_path, capsys):
    assert tune_lr(monkeypatch, tmp_path, FALLING, "optimizer.lr=0.025", "budget.tokens=1M", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    lr = found["suggested_lr"]
    assert 0.025 * 0.001 * 1.122**38 < lr < found["lowest_loss_lr"]
    assert f"optimizer.lr={lr:.3g} optimizer.embedding_lr={lr * 0.06 / 0.025:.3g}" in found["command"]
    assert found["command"].count("optimizer.lr=") == 1
    assert "budget.tokens=1M" in found["command"]
    assert "smoothed loss over learning rates" in (tmp_path / ".tune").glob("*.html").__next__().read_text()


NANO = ["model=nano", "model.depth=2", "optimizer=muon", "batch.tokens_per_step=32768"]
WIDE = ["model=llama_tiny", "optimizer=muon", "optimizer.head_lr=0.04", "scaling.base_width=64", *QUIET]


@pytest.mark.parametrize("words", [["scaling=depth_dial", *NANO, *DATA, *QUIET], ["scaling=width_transfer", *WIDE]])
def test_under_scaling_the_command_trains_at_the_rate_found(monkeypatch, tmp_path, capsys, words):
    scaled = checked_config(words).optimizer.values
    assert tune_lr(monkeypatch, tmp_path, FALLING, "--json", lr=scaled["lr"], config=words) == 0
    found = json.loads(capsys.readouterr().out)
    trained = checked_config(shlex.split(found["command"])[2:]).optimizer.values
    shares = {name: trained[name] / scaled[name] for name in ("lr", "embedding_lr", "head_lr", "vector_lr")}
    assert 0.001 * 1.122**38 < shares["lr"] < 0.001 * 1.122**70
    assert shares == pytest.approx(dict.fromkeys(shares, shares["lr"]), rel=0.01), "typed with three digits"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bach", "must be lr"),
        ("batch", "batch.micro_batch_sequences=auto"),
        ("lr --steps=3", "--steps: must be at least 30"),
        ("lr --lowest=2 --highest=1", "--lowest: must be above 0 and below --highest=1"),
        ("lr -m optimizer.lr=1,2", "tries one config"),
    ],
)
def test_wrong_words_are_refused(words, message):
    kind, *others = words.split()
    with pytest.raises(ConfigurationError, match=message):
        tune([kind, *TINY, *others])


def test_a_refused_training_leaves_its_output_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(EnvironmentProblem, match=r"exit code 2.*model=nona"):
        trained(["model=nona", "run.name=tried"])
    assert list(tmp_path.iterdir()) == []
