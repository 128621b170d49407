"""A pipeline's report card."""

from types import SimpleNamespace
from typing import Any

from lmtrain.report.report_card import Card, CardStage, card_page, card_text

LEDGER: Any = SimpleNamespace(time=SimpleNamespace(wall_seconds=90.0, goodput=0.8), tokens=2_000_000, usd=1.25)
SAMPLE = {"asked": "a | <b>?", "said": "<i>two\nlines"}


STAGES = [
    CardStage(
        name="base",
        command="lmtrain train",
        seconds=30.0,
        run="base",
        scores={},
        was_done=True,
        account=LEDGER,
    ),
    CardStage(
        name="asked",
        command="lmtrain evaluate",
        seconds=30.0,
        run="base",
        scores={
            "answers/sum": {"score": 0.25, "standard_error": 0.1, "guess": 0.0625, "ended": 0.5, "samples": [SAMPLE]}
        },
    ),
    CardStage(name="again", command="lmtrain evaluate", seconds=None, run="talker", scores={"core/mean": {"score": 1}}),
]


def test_the_card_holds_time_scores_by_run_and_samples() -> None:
    text = card_text(Card(name="mine", stages=STAGES))
    assert "stages: 3; time: 2min00s; dollars of the trainings: $1.25" in text
    assert "| base | 1min30s, skipped: unchanged | 2.0M | 80% | $1.25 | `lmtrain train` |" in text
    assert "| again | not yet |  |  |  | `lmtrain evaluate` |" in text
    assert "| score | base | talker | commonest answer |" in text
    assert "| answers/sum | 25.0% ± 10.0% (50% ended) |  | 6.2% |" in text
    assert "| core/mean |  | 1.0000 |  |" in text
    assert "| asked | base |\n|---|---|\n| a \\| <b>? | <i>two lines |" in text


def test_the_page_shows_the_same_and_no_one_s_markup() -> None:
    page = card_page(Card(name="mine", stages=STAGES))
    assert "25.0% ± 10.0%" in page
    assert ".scores td{min-width:" in page, "on a phone a score and its error stay on one line"
    assert "&lt;i&gt;two" in page
    assert "<i>two" not in page
    assert "<pre># base\nlmtrain train\n# asked" in page, "no column of the table, which a phone would cut"
