import multiprocessing
import subprocess
import time

import pytest

from lmtrain.cli.commands import evaluate_held as verb
from lmtrain.tracking.held_checkpoints import begin_scoring, held, hold, waiting
from lmtrain.tracking.run_log import RunLog, read_points
from tests.points import append_point
from tests.tracking.test_runs_apart import checkpoint
from tests.training.test_processes import is_running


@pytest.fixture
def run(tmp_path):
    for step in (20, 40):
        hold(tmp_path, checkpoint(tmp_path, step))
    return tmp_path


class Scoring:
    """`lmtrain evaluate` that posts a point, or ends with the codes of `fails` first."""

    def __init__(self, run, fails=()):
        self.run, self.fails = run, [*fails]
        self.tried = []

    def __call__(self, command, **settings):
        step = int(command[command.index("evaluate") + 1][-8:])
        self.tried.append(step)
        code = self.fails.pop(0) if self.fails else 0
        if code == 0:
            log = RunLog(self.run)
            append_point(log, step, step, {"evaluation/validation/bits_per_byte": 1.0})
            log.close()
        return subprocess.CompletedProcess(command, code)


def scored(monkeypatch, run, scoring):
    monkeypatch.setattr(verb.subprocess, "run", scoring)
    code = verb.evaluate_held(run, ["--data", "d"])
    log = run / "metrics.jsonl"
    return code, [point.step for point in read_points(log)] if log.exists() else []


def test_each_is_scored_once_in_order_and_let_go(monkeypatch, run):
    scoring = Scoring(run)
    assert scored(monkeypatch, run, scoring) == (0, [20, 40])
    assert held(run) == []


def test_a_killed_scoring_is_tried_again_and_then_given_up(monkeypatch, run, capsys):
    scoring = Scoring(run, fails=[-9, 0, 2, 2])
    assert scored(monkeypatch, run, scoring) == (1, [20])
    assert scoring.tried == [20, 20, 40, 40]
    assert "step 40 is given up" in capsys.readouterr().err
    assert held(run) == []


@pytest.mark.faults
def test_scores_posted_before_a_kill_are_not_posted_again(monkeypatch, run):
    log = RunLog(run)
    append_point(log, 20, 20, {"core/mean": 0.1})
    log.close()
    begin_scoring(waiting(run)[0])
    assert scored(monkeypatch, run, Scoring(run)) == (0, [20, 40])


def test_a_scoring_ends_with_its_killed_process_and_posts_nothing_beside_the_next(monkeypatch, run):
    started = run / "started"

    monkeypatch.setattr(verb, "python_command", lambda *_: ["sh", "-c", f"echo $$ > {started}; exec sleep 600"])
    scorer = multiprocessing.get_context("fork").Process(target=verb.evaluate_held, args=(run, []))
    scorer.start()
    until = time.monotonic() + 60
    while not (started.exists() and started.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    scorer.kill()
    scorer.join()
    while is_running(int(started.read_text())):
        assert time.monotonic() < until
        time.sleep(0.01)
