from lmtrain.accounting.observed.lr_range import LrRange
from lmtrain.report.tuning.lr_range_page import lr_range_lines, write_lr_range
from tests.report.test_pages import Reader

CURVE = tuple((10.0**power, 5.0 - power) for power in range(-3, 3))


def test_the_plot_has_decades_and_the_words_are_escaped(tmp_path):
    found = LrRange(smoothed=CURVE, start=8.0, noise=0.1, steepest=1.0, lowest=100.0)
    path = write_lr_range(found, lr=0.01, folder=tmp_path / "new", words=["a=<b>"])
    page = Reader(path.read_text())
    assert {"1e-5", "1e-1"} <= set(page.text.split()) or "1e-1" in page.text
    assert "a=<b>" in page.text
    lines = lr_range_lines(found, lr=0.01, command="lmtrain train", plot=path)
    assert "where the loss falls fastest, suggested (solid): 0.01" in lines
    assert lines[-1] == "  lmtrain train"


def test_without_a_suggestion_there_is_no_command(tmp_path):
    found = LrRange(smoothed=CURVE, start=8.0, noise=0.1, problem="it never fell")
    lines = lr_range_lines(found, lr=0.01, command="lmtrain train", plot=tmp_path)
    assert lines[-1] == "no suggestion: it never fell"
    assert "lmtrain train" not in "".join(lines)
