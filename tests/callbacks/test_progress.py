import queue
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lmtrain.callbacks.ledger import Ledger
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


def test_a_budget_of_time_has_no_number_of_steps_before_its_first_ones(make_run, capsys):
    run = make_run(steps=3)
    run.context.last_step.seconds = 40.0
    run.fit(Progress(every_seconds=0, context=run.context), TokenBudget(context=run.context))
    words = "cat: 40s on the clock, in steps of 32, their number by the speed of the first ones; first step, and"
    assert capsys.readouterr().out.splitlines()[0].startswith(words)


def test_a_loss_is_not_repeated_on_lines_that_come_faster_than_the_log(make_run, capsys):
    run = make_run(steps=6)
    log, progress = StepLog(every_steps=4, context=run.context), Progress(every_seconds=0, context=run.context)
    run.fit(log, progress, TokenBudget(context=run.context))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    told = [float(line.partition("| loss ")[2].partition(" ")[0]) for line in lines if "loss" in line]
    logged = run.points("train/loss")
    assert told == pytest.approx([logged[4], logged[6]], abs=1e-3)
    assert len(lines) == 6


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


def test_a_run_that_is_stopped_has_no_time_left(make_run, capsys):
    run = make_run(steps=9)
    run.fit(AtStep(3, stop), Progress(every_seconds=0, context=run.context), TokenBudget(context=run.context))
    steps = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert len(steps) == 3
    assert steps[-1].endswith("| 0s left")
    assert not steps[-2].endswith("| 0s left")


@pytest.mark.parametrize("every_steps", [1, 2])
def test_no_validation_is_forgotten_between_two_lines(make_run, capsys, every_steps):
    run = make_run(steps=4)
    progress = Progress(every_seconds=1000, context=run.context)
    run.fit(Validation(every_steps=every_steps, context=run.context), progress, TokenBudget(context=run.context))
    scores = run.points("validation/bits_per_byte")
    assert len(scores) > 2
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"validation {scores[min(scores)]:.3f} → {scores[max(scores)]:.3f} bits/byte" in last


def test_a_score_of_other_bytes_is_not_joined_to_those_before(make_run, capsys):
    run = make_run(steps=3)
    scores = {1: (9.0, 10), 2: (8.0, 20), 3: (7.0, 20)}
    at_steps = [
        AtStep(step, lambda _, step=step, score=score, read=read: run.context.append(
            step, {"validation/bits_per_byte": score, "validation/num_bytes": read}))
        for step, (score, read) in scores.items()
    ]  # fmt: skip
    run.fit(*at_steps, Progress(every_seconds=0, context=run.context), TokenBudget(context=run.context))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert "validation 9.000 bits/byte" in told[0]
    assert "validation 8.000 bits/byte" in told[1]
    assert "validation 8.000 → 7.000 bits/byte" in told[2]


def test_only_the_first_rank_speaks(make_run, capsys):
    run = make_run(steps=2)
    silent = replace(run.context, log=None, rank=1)
    run.fit(Progress(every_seconds=0, context=silent), TokenBudget(context=run.context))
    assert "step" not in capsys.readouterr().out


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


def test_the_panel_shows_where_the_time_goes(make_run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    run = make_run(steps=3)
    train(run, Ledger(every_steps=1, context=run.context))
    assert "goodput" in capsys.readouterr().out


def test_a_panel_that_stays_says_how_the_run_ended(make_run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for name, action, ended in (("a", lambda _: None, "done"), ("b", stop, "stopped")):
        train(make_run(name=name, steps=3), AtStep(2, action))
        assert ended in capsys.readouterr().out


def stop(trainer):
    trainer.should_stop = True


def test_a_long_pause_is_told_of_where_there_is_no_terminal(make_run, let_pass, monkeypatch):
    told = queue.SimpleQueue()
    monkeypatch.setattr("lmtrain.callbacks.progress._tell", told.put)
    run = make_run(steps=1)

    def wait(_):
        with run.context.events.pause("checkpoint"):
            let_pass(100)
            while "saving" not in (line := told.get(timeout=60)):
                pass
            assert line.startswith("saving a checkpoint… 1min4")
        with run.context.events.pause("validation"), run.context.events.stopwatch.spending("compile"):
            let_pass(100)
            while "validating" not in (line := told.get(timeout=60)):
                pass
            assert line.startswith("compiling, then validating… 1min4")

    train(run, AtStep(1, wait))
