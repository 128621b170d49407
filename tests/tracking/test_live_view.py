import io
from dataclasses import replace

import pytest
from rich.console import Console

from lmtrain.tracking.live_view import PANEL_COLUMNS, Snapshot, line, panel

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


def test_a_line_holds_all_numbers_of_the_moment():
    assert line(MIDDLE) == (
        "step 300/750 | 614.4K of 1.5M tokens (40%) | loss 3.501 | lr 1.49e-02 | 12.9K tokens/s | MFU 38.1% | "
        "validation 8.030 → 3.942 bits/byte | 1min11s left | $1.23"
    )


@pytest.mark.parametrize("columns", [80, 120])
def test_a_panel_holds_every_word_of_the_moment_from_80_columns_on(columns):
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


def render(snapshot, *, columns=100):
    console = Console(file=io.StringIO(), width=columns, height=40)
    console.print(panel(snapshot))
    return console.file.getvalue()
