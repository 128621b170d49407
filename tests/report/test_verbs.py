import json

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.report.verbs import compare, ledger, report
from tests.report.ledger_folder import write
from tests.report.test_comparison import sweep
from tests.report.test_log_line import write_log


def test_ledger_prints_a_page_or_one_json_object(tmp_path, capsys):
    folder = str(write(tmp_path / "a"))
    assert ledger([folder]) == 0
    assert "biggest lever" in capsys.readouterr().out
    assert ledger([folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attempts"] == 2


def test_ledger_at_a_step_prints_what_its_log_line_implies(tmp_path, capsys):
    folder = write(tmp_path / "a")
    write_log(folder)
    assert ledger([str(folder), "--at", "12"]) == 0
    assert (
        capsys.readouterr().out
        == "step 12 | loss 2.000 | 500 tokens/s since step 10 | MFU 150.0% (palm), 125.0% (causal)\n"
    )
    assert ledger([str(folder), "--at", "12", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["since_step"] == 10
    with pytest.raises(ConfigurationError, match="nearest valid: 12"):
        ledger([str(folder), "--at", "15"])


def test_report_writes_the_page_and_prints_its_path(tmp_path, capsys):
    folder = write(tmp_path / "a")
    assert report([str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_compare_prints_a_page_or_one_json_object_and_draws_a_chart(tmp_path, capsys):
    sweep(tmp_path / "runs")
    words = [str(tmp_path / "runs"), "--chart", str(tmp_path / "curves.svg")]
    assert compare(words) == 0
    assert "To reach 3.1000, by the mean curve" in capsys.readouterr().out
    assert (tmp_path / "curves.svg").read_text().startswith("<svg")
    assert compare([*words, "--json", "--baseline", "optimizer.lr=0.2", "--metric", "validation/loss"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["baseline"], found["target"]) == ("optimizer.lr=0.2", pytest.approx(9.3))


def test_compare_refuses_a_chart_in_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ConfigurationError, match=r"there is no folder .*nowhere; create it"):
        compare([str(tmp_path), "--chart", str(tmp_path / "nowhere/a.svg")])


def test_compare_states_its_exit_codes(capsys):
    with pytest.raises(SystemExit):
        compare(["--help"])
    assert "Exit codes: 0 compared, 2" in capsys.readouterr().out
