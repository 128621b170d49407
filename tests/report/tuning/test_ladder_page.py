from lmtrain.report.tuning.ladder_page import RungSpeed, ladder_lines, write_ladder
from tests.report.test_pages import Reader

RUNGS = [
    RungSpeed(rung="naive", words="a=1", tokens_per_second=100.0, mfu=0.1),
    RungSpeed(rung="bf16", words="a=2", tokens_per_second=None, mfu=None, problem="no <bf16> here"),
    RungSpeed(rung="batch", words="a=3", tokens_per_second=250.0, mfu=0.3),
]


def test_each_rung_is_set_against_the_last_that_ran_and_the_first(tmp_path):
    lines = ladder_lines(RUNGS, plot=tmp_path)
    assert lines[2].split() == ["bf16", "-", "-", "-", "-"]
    assert lines[3].split() == ["batch", "250", "30.0%", "2.50", "2.50"]
    assert "  bf16: no <bf16> here" in lines


def test_the_plot_has_two_bars_a_rung_and_escapes_words(tmp_path):
    page = Reader(write_ladder(RUNGS, folder=tmp_path / "new", words=["x=<y>"]).read_text())
    bars = [float(each["width"]) for name, each in page.tags if name == "rect"]
    assert len(bars) == 6
    assert max(bars) == bars[4] == bars[5], "the fastest rung's"
    assert "no <bf16> here" in page.text
    assert "x=<y>" in page.text
