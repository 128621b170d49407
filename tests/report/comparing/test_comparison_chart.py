from itertools import pairwise
from xml.etree import ElementTree

import pytest

from lmtrain.report.comparing.comparison import compare
from lmtrain.report.comparing.comparison_chart import CHARACTER, LEFT, LINE_HEIGHT, comparison_chart
from tests.report.compared_folder import write
from tests.report.comparing.test_comparison import sweep

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart):
    """Return the curves, without the lines that lead to their names."""
    return [line for line in chart.findall(f"{SVG}polyline") if line.get("stroke-dasharray")]


def places(line):
    return [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]


def test_curves_are_whole_from_their_beginning_and_no_word_lies_on_one(tmp_path):
    values = (8.0, *(2.0 + 1.0 / step for step in range(1, 30)))
    runs = [write(tmp_path / f"{n}", lr=n, values=[v + n / 50 for v in values]) for n in range(3)]
    chart = ElementTree.fromstring(comparison_chart(compare(runs)))
    assert not chart.findall(f"{SVG}clipPath")
    ruled = [float(line.get("y1", "")) for line in chart.findall(f"{SVG}line")]
    for line in drawn(chart):
        curve = places(line)
        assert len(curve) == 30, "every point"
        assert all(min(ruled) <= y <= max(ruled) for _, y in curve), "inside the plot"
        assert curve[0][0] == LEFT
    words = next(text for text in chart.findall(f"{SVG}text") if "times smaller" in (text.text or ""))
    right, baseline = float(words.get("x", "")), float(words.get("y", ""))
    left, top = right - CHARACTER * len(words.text or ""), baseline - 12
    inside = [(x, y) for line in drawn(chart) for x, y in places(line) if left <= x <= right and top <= y <= baseline]
    assert not inside
    lowest = [places(line)[-1][1] for line in drawn(chart)]
    assert min(best - next_best for best, next_best in pairwise(lowest)) > 10, "on one scale they would be 1.3 apart"


def test_every_choice_has_a_curve_a_band_between_its_seeds_and_its_name(tmp_path):
    chart = ElementTree.fromstring(comparison_chart(compare(sweep(tmp_path))))
    assert len(chart.findall(f"{SVG}polygon")) == 2
    curves = drawn(chart)
    assert [len(line.get("points", "").split()) for line in curves] == [3, 3]
    names = [text.text for text in chart.findall(f"{SVG}text")]
    assert "2.1000  optimizer.lr=0.1" in names
    assert "3.1000  optimizer.lr=0.2" in names


def test_lower_on_the_page_is_lower_in_value_and_equal_ends_keep_their_names_apart(tmp_path):
    runs = [write(tmp_path / f"{n}", lr=n, values=(8.0, 4.0, 2.0 + n / 1000)) for n in range(20)]
    chart = ElementTree.fromstring(comparison_chart(compare(runs)))
    names = [text for text in chart.findall(f"{SVG}text") if "optimizer.lr" in (text.text or "")]
    heights = [float(text.get("y", "")) for text in names]
    assert heights == sorted(heights, reverse=True), "the best choice is named first and lowest"
    gaps = [above - below for above, below in pairwise(heights)]
    assert min(gaps) >= LINE_HEIGHT - 0.2
    assert 0 < min(heights) < max(heights) < float(chart.get("viewBox", "").split()[3])
    inks = {(line.get("stroke"), line.get("stroke-dasharray")) for line in drawn(chart)}
    assert len(inks) == 20, "no two curves look alike"
    ends = [line.get("points", "").split()[-1] for line in drawn(chart)]
    assert len({end.split(",")[0] for end in ends}) == 1
    assert float(ends[0].split(",")[1]) == pytest.approx(float(ends[1].split(",")[1]), abs=1.0)


def test_a_long_name_widens_the_page(tmp_path):
    def width(words, folder):
        return float(
            ElementTree.fromstring(comparison_chart(compare([write(folder, words=words)])))
            .get("viewBox", "")
            .split()[2]
        )

    assert width(["long=" + "x" * 100], tmp_path / "a") > width(["short=x"], tmp_path / "b") + 500


def test_one_run_of_one_point_is_drawn_without_a_curve(tmp_path):
    assert "polygon" not in comparison_chart(compare([write(tmp_path / "a", values=(2.0,))]))
