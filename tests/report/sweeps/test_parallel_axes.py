from lmtrain.report.comparing.comparison_chart import ink_of
from lmtrain.report.sweeps.parallel_axes import BEST_COLOUR, STYLE, TrialLine, parallel_axes
from tests.report.test_markup import Reader


def lines(*scores: float | None) -> list[TrialLine]:
    return [
        TrialLine(number=number, values={"lr": f"1e-{number + 1}", "schedule": "ab"[number % 2]}, score=score)
        for number, score in enumerate(scores)
    ]


def test_every_trial_is_a_line_the_best_on_top_and_one_without_a_score_dotted() -> None:
    page = Reader(parallel_axes(lines(3.0, 1.0, None, 2.0), metric="loss", order=["schedule"]))
    drawn = [each for name, each in page.tags if name == "polyline"]
    assert len(drawn) == 4
    assert drawn[0]["stroke-dasharray"] == "2 4"
    assert len(drawn[0]["points"].split()) == 2, "no place on the score's axis"
    assert drawn[-1]["stroke"] == BEST_COLOUR == ink_of(0)[0], "the best choice's in the curves"
    assert {each["stroke"] for each in drawn[:-1]}.isdisjoint({BEST_COLOUR, *(ink_of(n)[0] for n in range(14))})
    names = [name for name, _ in page.tags if name in ("polyline", "span")]
    assert names == ["polyline"] * 4 + ["span"] * (len(names) - 4), "a line through a label is not over its letters"
    assert "text-shadow" in STYLE
    assert "background" not in STYLE, "and no label's box hides a line"
    assert drawn[-1]["points"].split()[-1].startswith("0.0,"), "the lowest score is the axis' beginning"
    assert float(drawn[1]["stroke-opacity"]) < float(drawn[2]["stroke-opacity"]), "the worse is fainter"
    assert page.text.index("schedule") < page.text.index("lr (logarithmic)")


def test_a_trial_gone_wrong_does_not_press_the_others_together() -> None:
    page = Reader(parallel_axes(lines(1.0, 1.1, 1.2, 1.3, 900.0), metric="loss"))
    assert "1.8000 or more" in page.text


def test_nothing_is_drawn_of_one_score_or_one_value() -> None:
    assert parallel_axes(lines(1.0, None), metric="loss") == ""
    same = [TrialLine(number=n, values={"lr": "1"}, score=float(n)) for n in range(3)]
    assert parallel_axes(same, metric="loss") == ""


def test_labels_of_the_first_axis_stand_above_it_and_those_of_the_last_below_where_no_line_is() -> None:
    trials = [TrialLine(number=n, values={"lr": f"0.0{n + 1}"}, score=float(n)) for n in range(3)]
    page = Reader(parallel_axes(trials, metric="loss"))
    first, last = (float(each["y1"]) for name, each in page.tags if name == "line")
    tops = [float(each["style"].removeprefix("top:").partition("px")[0]) for name, each in page.tags if name == "span"]
    assert max(tops[:3]) < first
    assert min(tops[3:]) > last
