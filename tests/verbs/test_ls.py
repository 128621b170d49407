import json
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.verbs.ls import ls
from tests.report.runs_on_disk import write_run


def test_all_runs_below_a_folder_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("runs/a", "runs/below/b"):
        write_run(tmp_path / name)
    assert ls([str(tmp_path / "runs")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["run", "a", "b"]
    assert ls([str(tmp_path / "runs" / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["loss"] == 4.25


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no run"):
        ls([str(tmp_path)])
