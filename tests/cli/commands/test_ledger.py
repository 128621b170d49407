import json

import pytest

from lmtrain.cli.commands.ledger import ledger
from lmtrain.errors import ConfigurationError
from tests.report.ledger.test_log_line import write_log
from tests.report.ledger_folder import write


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
        == "step 12 | loss 2.000 | 51 tokens/s since step 10 | MFU 15.4% (palm), 12.8% (causal)\n"
    )
    assert ledger([str(folder), "--at", "12", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["since_step"] == 10
    with pytest.raises(ConfigurationError, match="nearest valid: 12"):
        ledger([str(folder), "--at", "15"])
