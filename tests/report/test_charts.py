import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtrain.report.charts import COLOURS, STYLE, line_chart, swatch, thinned, ticks, time_bars
from lmtrain.tracking.timekeeping.stopwatch import KINDS
from tests.report.test_markup import Reader


def shapes(svg, name):
    return [attributes for found, attributes in Reader(svg).tags if found == name]


def test_a_curve_goes_through_its_points_and_says_where_it_ends():
    svg = line_chart([(1, 4.0), (2, 2.0), (3, 0.0)], name="loss")
    (line,) = shapes(svg, "polyline")
    xs, ys = zip(*(map(float, pair.split(",")) for pair in line["points"].split()), strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] < ys[1] < ys[2], "downwards on a screen is downwards in value"
    assert shapes(svg, "div")[0]["aria-label"] == "loss: from 4 to 0 at step 3"


def test_labels_are_text_beside_the_plot_where_no_curve_is_and_as_large_on_a_phone():
    plot = line_chart([(step, 1000.0 / (1 + step)) for step in range(100)], name="loss")
    assert not shapes(plot, "text"), "text in a picture shrinks with it"
    labels = [each for each in shapes(plot, "span") if each["class"] != "end"]
    assert {each["class"] for each in labels} == {"up", "across"}
    for each in labels:
        ((side, place),) = [each["style"].split(":")]
        assert side == {"up": "top", "across": "left"}[each["class"]]
        assert 0 <= float(place.removesuffix("%")) <= 100
    assert ".up{right:calc(100% + 8px)" in STYLE
    assert ".across{top:calc(100% + 8px)" in STYLE
    assert "font-size:12px" in STYLE
    assert shapes(plot, "div")[0]["style"] == "--gutter:4ch", "room for the longest label beside the plot: 1000"


def test_what_is_no_number_is_left_out_and_one_point_is_no_curve():
    assert line_chart([(1, math.nan), (2, 1.0)], name="loss") == ""
    assert "nan" not in line_chart([(1, 1.0), (2, math.inf), (3, math.nan), (4, 2.0)], name="loss")
    assert line_chart([(1, 1.0), (2, 1.0)], name="a constant") != ""


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_span_what_they_are_for(low, spread):
    found = ticks(low, low + spread)
    assert found == sorted(found)
    assert len(found) <= 7
    tolerance = 1e-9 * (abs(low) + spread) + 1e-11
    assert found[0] <= low + tolerance
    assert found[-1] >= low + spread - tolerance or spread < 1e-9 * abs(low)


def test_many_points_are_averaged_and_none_is_forgotten():
    points = thinned([(float(step), float(step % 2)) for step in range(3000)])
    assert len(points) == 300
    assert {value for _, value in points} == {0.5}


def test_bars_are_as_long_as_the_attempts_and_in_the_kinds_colours():
    svg = time_bars([{"compute": 30.0, "lost": 10.0}, {"compute": 20.0}], kinds=["compute", "lost"])
    rects = shapes(svg, "rect")
    assert [float(rect["width"]) for rect in rects] == [300.0, 100.0, 200.0]
    assert [rect["fill"] for rect in rects] == [COLOURS["compute"], COLOURS["lost"], COLOURS["compute"]]


def test_every_kind_has_a_colour_of_its_own():
    assert set(COLOURS) == {*KINDS, "lost"}
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert "data wait" in swatch("data_wait")
