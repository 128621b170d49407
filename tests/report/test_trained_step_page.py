import math
from dataclasses import replace

from lmtrain.report.show import plain_text
from lmtrain.report.trained_step_page import StepDocument, by_loss, documents_table, full_lines

ONE = StepDocument(
    sequence=3,
    rank=1,
    micro_step=2,
    row=12_345,
    first_token=0,
    num_tokens=7,
    num_learned=7,
    nats_per_token=2.5,
    worst="a\tb\x1b[31m",
    text="first\nsecond",
)


def test_no_number_comes_first_then_the_highest_loss_and_unscored_last() -> None:
    losses = [1.0, math.nan, None, 3.0]
    order = [one.nats_per_token for one in by_loss([replace(ONE, nats_per_token=loss) for loss in losses])]
    assert math.isnan(order[0] or 0.0)
    assert order[1:] == [3.0, 1.0, None]


def test_a_line_a_document_without_control_characters_of_its_text() -> None:
    page = plain_text(documents_table([ONE]))
    assert "12,345" in page
    assert "2.500" in page
    assert r"a\tb\x1b[31m" in page


def test_a_mixture_names_the_source_of_each_row() -> None:
    mixed = [replace(ONE, source="web"), replace(ONE, source="math\x1b[31m")]
    page = plain_text(documents_table(mixed))
    assert "source" in page
    assert "web" in page
    assert "\x1b" not in page
    assert "source" not in plain_text(documents_table([ONE]))
    assert full_lines(mixed[0])[0] == "web, sequence 3, tokens 0 to 6, 2.500 nats/token"


def test_a_whole_text_stands_under_its_place() -> None:
    lines = full_lines(ONE)
    assert lines == ["sequence 3, tokens 0 to 6, 2.500 nats/token", "  | first", "  | second", ""]
    assert full_lines(replace(ONE, text="a\x1b[31m"))[1] == "  | a\N{REPLACEMENT CHARACTER}[31m"
