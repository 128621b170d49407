import io
from dataclasses import replace

import pytest
from rich.console import Console

from lmtrain.tracking.live_view import PANEL_COLUMNS, Snapshot, line, panel, sparkline

START = Snapshot(name="cat", activity="compiling…", step=0, num_steps=750, tokens_per_step=2048)
MIDDLE = replace(
    START,
    activity="training",
    step=300,
    loss=3.5012,
    lr=0.0149,
    tokens_per_second=12_934.0,
    mfu=0.381,
    seconds_left=71.3,
    usd=1.234,
    validation=(8.03, 3.942),
    checkpoint_step=250,
)


def test_no_end_is_told_before_a_budget_of_time_has_a_speed():
    unknown = replace(MIDDLE, num_steps=None, seconds_left=None)
    assert line(unknown).startswith("step 300 | 614.4K tokens | loss 3.501")
    console = Console(file=io.StringIO(), width=80)
    console.print(panel(unknown))
    assert "step 300 " in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_line_holds_all_numbers_of_the_moment():
    assert line(MIDDLE) == (
        "step 300/750 | 614.4K of 1.5M tokens (40%) | loss 3.501 | lr 1.49e-02 | 12.9K tokens/s | MFU 38.1% | "
        "validation 8.030 → 3.942 bits/byte | 1min11s left | $1.23"
    )


def test_a_task_of_rewards_shows_them_and_a_step_that_taught_nothing():
    now = replace(MIDDLE, loss=0.0, reward=0.25, equal_groups=0.5)
    assert "| loss 0.000 | reward 0.25 |" in line(now)
    assert "reward 0 (all groups equal: nothing to learn from)" in line(replace(now, reward=0.0, equal_groups=1.0))
    assert "reward" not in line(MIDDLE)
    pairs = replace(MIDDLE, loss=0.5, preferred=0.75, margin=0.1234)
    assert "| loss 0.500 | preferred 75% of pairs by 0.123 |" in line(pairs)
    assert "preferred" not in line(MIDDLE)


def test_a_speed_of_a_part_of_the_tokens_says_so():
    assert " | 12.9K tokens/s with loss | MFU 38.1% | " in line(replace(MIDDLE, loss_share=0.3))


def test_what_the_whole_run_costs_stands_beside_what_it_cost_so_far():
    projected = replace(MIDDLE, projected_usd=3.2, kwh=0.41, projected_kwh=1.05)
    assert line(projected).endswith("| $1.23 of about $3.20 | 0.41 kWh of about 1.05 kWh")
    for text in ("cost", "$1.23 of about $3.20", "energy", "0.41 kWh of about 1.05 kWh"):
        assert text in render(projected)


@pytest.mark.parametrize("columns", [40, 47, 60, 80, 120])
def test_a_panel_holds_every_word_of_the_moment_at_any_width(columns):
    shares = {"setup": 0.2, "compute": 0.61, "data_wait": 0.19}
    full = replace(MIDDLE, loss_share=0.3, projected_usd=3.2, kwh=0.41, projected_kwh=1.05, time_shares=shares)
    shown = render(full, columns=columns)
    assert max(map(len, shown.splitlines())) <= min(columns, PANEL_COLUMNS)
    assert "…" not in shown, "nothing is cut"
    for text in ("cat", "training", "40.0%", "step 300 of 750", "1min11s left", "3.501 nats", "38.1%", "step 250"):
        assert text in shown
    words = shown.replace("│", " ").split()
    for name in ("loss", "validation", "learning", "rate", "speed", "checkpoint", "MFU", "goodput", "cost", "energy"):
        assert name in words
    for value in ("8.030", "→", "3.942", "bits/byte", "$1.23", "$3.20", "0.41", "1.05", "19%"):
        assert value in words
    rows = shown.splitlines()
    assert [row for row in rows if "loss" in row and "validation" in row] == (rows[5:6] if columns >= 80 else [])


def test_a_run_s_name_is_no_markup():
    assert "a [b] c" in render(replace(MIDDLE, name="a [b] c"))


def test_a_panel_says_how_much_of_the_time_computed_and_what_took_the_rest():
    shares = {"setup": 0.2, "compute": 0.65, "data_wait": 0.11, "logging": 0.04}
    shown = render(replace(MIDDLE, time_shares=shares))
    assert "65.0%" in shown
    assert "setup 20%, data wait 11%" in shown
    assert "logging" not in shown
    assert "CPU taken by others 35%" in render(replace(MIDDLE, time_shares={"compute": 0.65, "preempted": 0.35}))
    assert "goodput" not in render(MIDDLE)


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
