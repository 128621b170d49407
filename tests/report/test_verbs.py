import json

from lmtrain.report.verbs import ledger
from tests.report.ledger_folder import write


def test_ledger_prints_a_page_or_one_json_object(tmp_path, capsys):
    folder = str(write(tmp_path / "a"))
    assert ledger([folder]) == 0
    assert "biggest lever" in capsys.readouterr().out
    assert ledger([folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attempts"] == 2
