from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from lmtrain.report.markup import Markup, joined, table, tag


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


def test_tags_nest_and_their_attributes_read_as_in_html():
    assert tag("p", "a", tag("b", "c"), class_="d", stroke_width=2) == '<p class="d" stroke-width="2">a<b>c</b></p>'
    assert tag("rect", x=1) == '<rect x="1"/>'
    assert isinstance(joined(["a", tag("b")]), Markup)


def test_a_table_names_its_rows_and_columns():
    page = table([("loss", "1 < 2")], head=("", "nats"))
    assert '<th scope="row">loss</th><td>1 &lt; 2</td>' in page
    assert '<th scope="col">nats</th>' in page
    page = table([("a", "1", ""), ("b", "", "")], head=("run", "loss", "reason"))
    assert "loss" in page
    assert "reason" not in page
    assert page.count("<td>") == 2
