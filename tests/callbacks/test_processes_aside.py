"""Processes that a run starts and does not wait for."""

import logging
import time
from typing import ClassVar

import pytest

from lmtrain.callbacks import evaluate_aside
from lmtrain.callbacks import push as module
from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.evaluate_aside import EvaluateAside
from lmtrain.callbacks.push import LOG, Push
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.tracking.held_checkpoints import held, step_of


class Process:
    """A process that never gets to scoring, or has failed at it."""

    started: ClassVar[list[list[str]]] = []

    def __init__(self, command, *, code=None, **settings):
        self.started.append(command)
        self.code = code

    def poll(self):
        return self.code


@pytest.fixture
def started(monkeypatch):
    Process.started = []
    monkeypatch.setattr(evaluate_aside.subprocess, "Popen", Process)
    return Process.started


def fit(run, **settings):
    aside = EvaluateAside(every_steps=1, context=run.context, **settings)
    run.fit(Checkpoint(every_steps=2, keep_last=1, context=run.context), aside, TokenBudget(context=run.context))
    return [step_of(place) for place in held(run.context.folder)]


def test_checkpoints_wait_though_the_run_deletes_them_and_the_oldest_is_given_up(make_run, started, caplog):
    run = make_run(steps=8)
    with caplog.at_level(logging.WARNING):
        assert fit(run, most_waiting=3) == [4, 6, 8]
    assert run.saved_steps() == [8]
    assert "Step 2 is not scored aside: the scoring is slower than the saving." in caplog.text
    command, last = started  # the first is queued, and will look for all
    assert command == last
    assert command[4] == str(run.context.folder)
    assert command[5:] == ["--data", str(run.context.dataset.folder), "--split", "validation", "--device", "cpu"]


def test_a_failed_scoring_is_told_and_the_next_process_started(make_run, monkeypatch, caplog):
    Process.started = []
    monkeypatch.setattr(evaluate_aside.subprocess, "Popen", lambda *args, **settings: Process(*args, code=1))
    fit(make_run(steps=4))
    assert "could not be scored aside" in caplog.text
    assert len(Process.started) > 1, "the checkpoints wait still"


NOW = {
    "repository": "me/model",
    "every_minutes": 1e-9,
}


def train(run, *callbacks):
    context = run.context
    log, checkpoint = StepLog(every_steps=1, context=context), Checkpoint(every_steps=2, context=context)
    run.fit(TokenBudget(context=context), log, checkpoint, *callbacks)
    return run.points("train/loss")


@pytest.fixture
def started_of_push(monkeypatch):
    """Commands, in place of their processes: each still runs when it is asked."""
    commands = []

    class Process:
        def __init__(self, command, **settings):
            commands.append((command[-3:], settings))

        def poll(self):
            return None

    monkeypatch.setattr(module.subprocess, "Popen", Process)
    return commands


def test_one_push_at_a_time_of_a_new_checkpoint_and_one_at_the_end(make_run, started_of_push):
    run = make_run(steps=6)
    train(run, Push(context=run.context, **NOW))
    words = ["push", str(run.context.folder), "me/model"]
    assert [command for command, _ in started_of_push] == [words, words]  # the first still ran at step 4
    settings = started_of_push[0][1]
    assert settings["start_new_session"]
    assert settings["env"]["CUDA_VISIBLE_DEVICES"] == ""
    assert "RANK" not in settings["env"]


def test_a_push_that_fails_hangs_or_cannot_start_leaves_the_run_alone(make_run, monkeypatch):
    plain = train(make_run(steps=4, name="plain"))
    for code in ("raise SystemExit(3)", "import time; time.sleep(60)", None):
        run = make_run(steps=4, name=f"run_{len(code or '')}")
        monkeypatch.setattr(module, "LMTRAIN", ("-c", code or ""))
        if code is None:
            monkeypatch.setattr("sys.executable", "/nowhere/python")
        callback = Push(context=run.context, **NOW)
        began = time.monotonic()
        assert train(run, callback) == plain
        assert time.monotonic() - began < 30
        if callback._process is not None:
            callback._process.kill()
            callback._process.wait()
            assert (run.context.folder / LOG).is_file()
