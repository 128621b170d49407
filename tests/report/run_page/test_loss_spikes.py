import math

from lmtrain.report.run_page.loss_spikes import find_spikes, spikes_section
from lmtrain.tracking.run_log import Point
from tests.report.test_markup import Reader


def points(losses, skipped=()):
    found, count = [], 0
    for step, loss in enumerate(losses, start=1):
        count += step in skipped
        found.append(Point(0.0, step, step, {"train/loss": loss, "train/skipped_steps": count}))
    return found


LOSSES = [3.0 + 0.01 * (step % 3) for step in range(40)]


def test_a_step_that_stands_out_is_no_number_or_was_skipped_is_a_spike():
    losses = [*LOSSES]
    losses[20], losses[30] = 5.0, math.nan
    found = find_spikes(points(losses, skipped={36}))
    assert [spike.step for spike in found] == [31, 21, 36], "no number first, then by height"
    assert [spike.was_skipped for spike in found] == [False, False, True]
    assert find_spikes(points(LOSSES)) == []
    assert find_spikes(points([1.0, 9.0])) == [], "too early to tell"


def test_their_text_is_shown_and_escaped():
    losses = [*LOSSES[:30], 6.0]
    page = Reader(spikes_section(points(losses), texts=lambda step: [f"<b>text of {step}</b>"], run="runs/a"))
    assert "<b>text of 31</b>" in page.text
    assert "lmtrain data show runs/a --step N" in page.text
    assert not spikes_section(points(LOSSES), texts=None, run="runs/a")
