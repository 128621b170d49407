"""The run and its push: a process that fails, hangs or cannot start changes nothing, and none is waited for."""

import time

import pytest

from lmtrain.callbacks import push as module
from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.push import LOG, Push
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget

NOW = {"repository": "me/model", "every_minutes": 1e-9, "what": "bundle"}


def train(run, *callbacks):
    context = run.context
    log, checkpoint = StepLog(every_steps=1, context=context), Checkpoint(every_steps=2, context=context)
    run.fit(TokenBudget(context=context), log, checkpoint, *callbacks)
    return run.points("train/loss")


@pytest.fixture
def started(monkeypatch):
    """Commands, in place of their processes: each still runs when it is asked."""
    commands = []

    class Process:
        def __init__(self, command, **settings):
            commands.append((command[-5:], settings))

        def poll(self):
            return None

    monkeypatch.setattr(module.subprocess, "Popen", Process)
    return commands


def test_one_push_at_a_time_of_a_new_checkpoint_and_one_at_the_end(make_run, started):
    run = make_run(steps=6)
    train(run, Push(context=run.context, **NOW))
    words = ["push", str(run.context.folder), "me/model", "--what", "bundle"]
    assert [command for command, _ in started] == [words, words]  # the first still ran at step 4
    settings = started[0][1]
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
