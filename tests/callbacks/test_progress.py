import io
from dataclasses import replace

import pytest
from rich.console import Console

from lmtrain.callbacks.progress import Progress, Snapshot, line, panel, sparkline
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.callbacks.validation import Validation
from tests.callbacks.tiny_run import AtStep

START = Snapshot(name="cat", activity="compiling…", step=0, num_steps=750, tokens_per_step=2048)
MIDDLE = replace(
    START,
    activity="training",
    step=300,
    loss=3.5012,
    lr=0.0149,
    tokens_per_second=12_934.0,
    mfu=0.381,
    usd=1.234,
    validation=(8.03, 3.942),
    checkpoint_step=250,
)


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
    assert lines[0] == "cat: 96 tokens in 3 steps of 32; compiling…"
    assert lines[1].startswith("step 1/3 | 32 of 96 tokens (33%) | loss 5.")
    assert len(lines) == 1 + 3
    assert lines[-1].startswith("step 3/3 | 96 of 96 tokens (100%)")
    assert "bits/byte" in lines[-1]


def test_only_the_first_rank_speaks(make_run, capsys):
    run = make_run(steps=2)
    silent = replace(run.context, log=None, rank=1)
    run.fit(Progress(every_seconds=0, context=silent), TokenBudget(context=run.context))
    assert "step" not in capsys.readouterr().out


def test_a_terminal_gets_a_panel_and_its_cursor_back_after_a_crash(make_run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    run = make_run(steps=3)

    def crash(_):
        raise KeyError("crash")

    with pytest.raises(KeyError):
        train(run, AtStep(2, crash))
    printed = capsys.readouterr().out
    assert "╭─" in printed
    assert "of 3" in printed
    assert "failed" in printed
    assert printed.rindex("\x1b[?25h") > printed.rindex("\x1b[?25l")  # show cursor after hide cursor


def test_a_panel_that_stays_says_how_the_run_ended(make_run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for name, action, ended in (("a", lambda _: None, "done"), ("b", stop, "stopped")):
        train(make_run(name=name, steps=3), AtStep(2, action))
        assert ended in capsys.readouterr().out


def stop(trainer):
    trainer.should_stop = True


def test_a_line_holds_all_numbers_of_the_moment():
    assert line(MIDDLE) == (
        "step 300/750 | 614.4K of 1.5M tokens (40%) | loss 3.501 | lr 1.49e-02 | 12.9K tokens/s | MFU 38.1% | "
        "validation 8.030 → 3.942 bits/byte | 1min11s left | $1.23"
    )


def test_time_left_is_the_rest_of_the_tokens_at_the_present_speed():
    assert MIDDLE.seconds_left == pytest.approx(450 * 2048 / 12_934)
    assert START.seconds_left is None


@pytest.mark.parametrize("columns", [60, 120])
def test_a_panel_holds_all_numbers_of_the_moment(columns):
    shown = render(MIDDLE, columns=columns)
    for text in ("cat", "training", "40.0%", "step 300 of 750", "1min11s left", "3.501", "38.1%", "$1.23", "step 250"):
        assert text in shown


def test_an_unknown_peak_is_called_so_and_never_0_percent():
    unknown = replace(MIDDLE, mfu=None, peak_is_known=False)
    for shown in (line(unknown), render(unknown)):
        assert "peak unknown" in shown
        assert " 0.0%" not in shown


def test_a_run_that_just_began_shows_what_it_waits_for():
    assert "compiling…" in render(START)
    assert "$" not in render(START)


def test_a_sparkline_runs_from_the_smallest_to_the_largest():
    assert sparkline((4.0, 2.0, 1.0, 1.0)) == "█▃▁▁"
    assert sparkline((1.0, 1.0)) == "▁▁"
    assert sparkline((1.0,)) == ""


def render(snapshot, *, columns=100):
    console = Console(file=io.StringIO(), width=columns, height=40)
    console.print(panel(snapshot))
    return console.file.getvalue()
