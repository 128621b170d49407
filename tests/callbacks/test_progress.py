from types import SimpleNamespace

import pytest

from lmtrain.callbacks.progress import Progress
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.callbacks.validation import Validation
from lmtrain.training.stopping import StoppedEarly
from tests.callbacks.tiny_run import AtStep


def train(run, *callbacks):
    log = StepLog(every_steps=1, context=run.context)
    run.fit(log, *callbacks, Progress(every_seconds=0, context=run.context), TokenBudget(context=run.context))


def test_lines_without_a_terminal_have_no_control_characters(make_run, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    run = make_run(steps=3)
    train(run, Validation(context=run.context))
    printed = capsys.readouterr().out
    assert not set(printed) & {"\r", "\x1b"}
    lines = printed.splitlines()
    assert lines[0] == "cat: 96 tokens in 3 steps of 32; first step, and compilation where asked…"
    assert lines[1].startswith("step 1/3 | 32 of 96 tokens (33%) | loss 5.")
    assert len(lines) == 1 + 3
    assert lines[-1].startswith("step 3/3 | 96 of 96 tokens (100%)")
    assert "bits/byte" in lines[-1]


@pytest.mark.parametrize(
    ("validation_seconds", "times"),
    [(0.0, ["5min00s", "3min20s", "1min40s", "0s"]), (60.0, ["6min00s", "4min20s", "2min40s", "0s"])],
)
def test_time_left_is_that_of_the_steps_at_the_pace_of_those_done_and_of_the_last_validation(
    make_run, capsys, monkeypatch, validation_seconds, times
):
    run = make_run(steps=5)
    run.context.events.last_pauses["validation"] = validation_seconds
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("lmtrain.callbacks.progress.time", clock)
    seconds = {1: 5000, 2: 5100, 3: 5200, 4: 5300, 5: 5400}  # the first step compiles
    at_steps = [AtStep(step, lambda _, now=now: setattr(clock, "now", now)) for step, now in seconds.items()]
    run.fit(*at_steps, Progress(every_seconds=0, context=run.context), TokenBudget(context=run.context))
    steps = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    left = [line.rpartition("| ")[2].removesuffix(" left") if line.endswith("left") else None for line in steps]
    assert left == [None, *times]


@pytest.mark.parametrize(("end", "told"), [(KeyError("crash"), "failed"), (StoppedEarly(2), "stopped")])
def test_a_terminal_gets_a_panel_and_its_cursor_back_after_a_crash(make_run, capsys, monkeypatch, end, told):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    run = make_run(steps=3)

    def crash(_):
        raise end

    with pytest.raises(type(end)):
        train(run, AtStep(2, crash))
    printed = capsys.readouterr().out
    assert "╭─" in printed
    assert "step 2 of 3" in printed, "done, though this callback's turn had not come"
    assert "of 3" in printed
    assert told in printed
    assert printed.rindex("\x1b[?25h") > printed.rindex("\x1b[?25l")  # show cursor after hide cursor
