"""A learning rate and a micro batch found by short trainings, which are replaced by known curves here."""

import json
import shlex

import pytest

from lmtrain.cli.commands import tune as command
from lmtrain.cli.commands.tune import tune
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.execution.tried_run import TriedRun, checked_config, kept, try_run
from lmtrain.tracking.run_log import Point
from tests.tiny import DATA, QUIET, TINY

NO_MEMORY = TriedRun(exit_code=3, points=(), words="Out of memory at")
FALLING = [5.0] * 40 + [5.0 - 0.1 * step for step in range(30)] + [2.0 + step for step in range(30)]


def tune_lr(monkeypatch, tmp_path, losses, *words, lr=0.025, config=TINY):
    points = [
        Point(0.0, step, 0, {"train/lr": lr * 0.001 * 1.122**step, "train/loss": loss})
        for step, loss in enumerate(losses)
    ]
    run = TriedRun(exit_code=0, points=tuple(points), words="lmtrain: no such data")
    monkeypatch.setattr(command, "try_run", lambda *_, **__: run)
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


def tune_batch(monkeypatch, most, *words, failure=NO_MEMORY):
    tried: list[int] = []

    def run(typed, **_):
        size = int(typed[-1].partition("=")[2])
        tried.append(size)
        point = Point(0.0, 3, 0, {"memory/peak_bytes": 1e9 + size, "speed/tokens_per_second": 100.0})
        return TriedRun(exit_code=0, points=(point,), words="") if size <= most else failure

    monkeypatch.setattr(command, "try_run", run)
    return tune(["batch", *TINY, "batch.tokens_per_step=2048", *words]), tried


@pytest.mark.parametrize("most", [0, 1, 5, 32, 64])
def test_the_largest_that_fits_is_found_by_few_tries(monkeypatch, capsys, most):
    code, tried = tune_batch(monkeypatch, most, "--json")
    found = json.loads(capsys.readouterr().out)
    largest = {0: None, 1: 1, 5: 4, 32: 32, 64: 64}[most]
    assert (found["largest"], code) == (largest, 0 if largest else 1)
    assert len(tried) == len(set(tried)) <= 4, "of seven sizes"
    assert all(one["planned_bytes"] > 0 for one in found["tried"])


def test_a_killed_try_does_not_fit_and_any_other_failure_ends_the_search(monkeypatch, capsys):
    assert tune_batch(monkeypatch, 2, failure=TriedRun(exit_code=-9, points=(), words=""))[0] == 0
    assert "batch.micro_batch_sequences=2" in capsys.readouterr().out
    with pytest.raises(EnvironmentProblem, match="failed with exit code 4: no data"):
        tune_batch(monkeypatch, 2, failure=TriedRun(exit_code=4, points=(), words="no data"))
    with pytest.raises(EnvironmentProblem, match=r"0\.10 GB .* Python and torch"):
        tune_batch(monkeypatch, 2, "cluster.memory_bytes=1e8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bach", "must be lr or batch.*'batch'"),
        ("lr --steps=3", "--steps must be at least 30"),
        ("lr --lowest=2 --highest=1", "--lowest must be above 0 and below --highest=1"),
        ("batch --steps=1", "--steps must be at least 2"),
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
    run = try_run(["model=nona"], num_steps=2, callbacks=["step_log"])
    assert (run.exit_code, run.points) == (2, ())
    assert "model=nona" in run.words
    assert not run.is_out_of_memory
    assert list(tmp_path.iterdir()) == []
    words = ["model=nano", "budget.steps=9", "+callbacks.x=1", "run.root=a", "schedule.lowest=1", "runs=2"]
    assert kept(words, also=("schedule",)) == ["model=nano", "runs=2"]
