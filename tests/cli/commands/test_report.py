from lmtrain.cli.commands.report import report
from tests.report.compared_folder import write as write_compared
from tests.report.ledger_folder import write


def test_report_writes_the_page_and_prints_its_path(tmp_path, capsys):
    folder = write(tmp_path / "a")
    assert report([str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_report_of_a_sweep_lies_beside_its_runs(tmp_path, capsys):
    write_compared(tmp_path / "a", sweep="sweep-1")
    assert report([str(tmp_path / "sweep-1")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'sweep-1.html'}\n"
    assert "1 trial: 1 finished" in (tmp_path / "sweep-1.html").read_text()
