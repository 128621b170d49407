import pytest

from lmtrain.report.comparing.comparison import compare
from lmtrain.report.comparing.comparison_axes import OPENING_HEIGHT, band, comparison_axes
from tests.report.compared_folder import write
from tests.report.comparing.test_comparison import sweep


def axes_of(folder, values):
    return comparison_axes(compare([write(folder, values=values)]).choices)


def test_a_steep_opening_gets_a_fifth_of_the_page_and_says_so(tmp_path):
    axes = axes_of(tmp_path / "a", (8.0, *(2.0 + 1.0 / step for step in range(2, 20))))
    place = axes.place(bottom=100.0, top=0.0)
    assert (place(8.0), place(axes.cut), place(axes.bottom)) == (0.0, pytest.approx(100 * OPENING_HEIGHT), 100.0)
    heights = [place(value / 100) for value in range(200, 801)]
    assert heights == sorted(heights, reverse=True), "lower in value is lower on the page, across the break too"
    above, below = place(axes.cut) - place(axes.cut + 0.1), place(axes.bottom) - place(axes.bottom + 0.1)
    assert axes.words == f"above {axes.cut:g}: drawn {below / above:.2g} times smaller"


def test_a_gentle_curve_has_one_scale(tmp_path):
    axes = axes_of(tmp_path / "a", (3.0, 2.8, 2.6, 2.4))
    assert not axes.is_broken
    assert axes.words == ""
    place = axes.place(bottom=100.0, top=0.0)
    assert place(2.6) - place(2.8) == pytest.approx(place(2.4) - place(2.6))


def test_a_band_goes_over_the_highest_seed_and_back_under_the_lowest(tmp_path):
    first = compare(sweep(tmp_path)).choices[0]
    assert band(first) == [(0, 8.0), (100, 3.2), (200, 2.2), (200, 2.0), (100, 3.0), (0, 8.0)]
    assert band(compare([write(tmp_path / "one")]).choices[0]) == []
