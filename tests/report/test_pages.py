"""The parts of pages: markup that escapes, charts, and text for a terminal."""

import io
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from lmtrain.report.charts import line_chart
from lmtrain.report.markup import tag
from lmtrain.report.show import COLUMNS, plain_text, show


class Reader(HTMLParser):
    """Collects tags and text as a browser would understand them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@given(st.text(), st.text())
def test_no_text_or_attribute_becomes_markup(text, value):
    found = Reader(tag("p", text, title=value))
    assert [name for name, _ in found.tags] == ["p"]
    assert found.tags[0][1].keys() == {"title"}


def test_a_script_is_shown_and_not_run():
    page = tag("pre", "<script>alert(1)</script>\x1b[31m")
    assert page == "<pre>&lt;script&gt;alert(1)&lt;/script&gt;\N{REPLACEMENT CHARACTER}[31m</pre>"


def shapes(svg, name):
    return [attributes for found, attributes in Reader(svg).tags if found == name]


def test_a_curve_goes_through_its_points_and_says_where_it_ends():
    svg = line_chart([(1, 4.0), (2, 2.0), (3, 0.0)], name="loss")
    (line,) = shapes(svg, "polyline")
    xs, ys = zip(*(map(float, pair.split(",")) for pair in line["points"].split()), strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] < ys[1] < ys[2], "downwards on a screen is downwards in value"
    assert shapes(svg, "div")[0]["aria-label"] == "loss: from 4 to 0 at 3 tokens"


def test_what_is_no_number_is_left_out_and_one_point_is_no_curve():
    assert line_chart([(1, math.nan), (2, 1.0)], name="loss") == ""
    assert "nan" not in line_chart([(1, 1.0), (2, math.inf), (3, math.nan), (4, 2.0)], name="loss")
    assert line_chart([(1, 1.0), (2, 1.0)], name="a constant") != ""


PAGE = Text("a page " * 30, style="bold red")


def test_plain_text_has_no_control_characters_and_no_spaces_at_line_ends():
    text = plain_text(PAGE)
    assert "\x1b" not in text
    assert all(line == line.rstrip() and len(line) <= COLUMNS for line in text.splitlines())


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_name_of_somebody_else_s_folder_commands_no_terminal(monkeypatch, is_terminal):
    class Output(io.StringIO):
        def isatty(self):
            return is_terminal

    output = Output()
    monkeypatch.setattr("sys.stdout", output)
    table = Table("name\x1b[2J", "\u202emodnar")
    table.add_row("\x1b]0;mine\x07", "\x9b31m\rover\u2066")
    show(table)
    show(Text("a\x1bb\xa0\u3000c"), soft_wrap=True)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue())
    assert not set(shown) & set("\x1b\x07\x9b\r\u202e\u2066")
    assert "\xa0\u3000" in shown
