from lmtrain.report.ledger import read_ledger
from lmtrain.report.ledger_page import text_of
from tests.report.ledger_folder import write


def test_the_page_has_every_kind_its_share_and_the_sum(tmp_path):
    text = text_of(read_ledger(write(tmp_path / "a")))
    for shown in ("compute", "54.8%", "lost", "31.5%", "data wait", "total", "100.0%", "1min13s on the clock"):
        assert shown in text
    assert "biggest lever: lost 32%: lower callbacks.checkpoint.every_seconds" in " ".join(text.split())
    assert "$1.46 so far, $2.92 for the whole run" in text
    assert "0.001 TFLOP/s x 2 devices (a test)" in text


def test_the_page_has_no_control_characters(tmp_path):
    assert "\x1b" not in text_of(read_ledger(write(tmp_path / "a")))
