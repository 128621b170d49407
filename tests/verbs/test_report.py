from lmtrain.verbs.report import report
from tests.report.ledger_folder import write


def test_report_writes_the_page_and_prints_its_path(tmp_path, capsys):
    folder = write(tmp_path / "a")
    assert report([str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
