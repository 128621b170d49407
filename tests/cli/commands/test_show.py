from pathlib import Path

import pytest

from lmtrain.cli.commands.show import show
from tests.report.runs_on_disk import write_run


def test_a_run_is_shown_with_its_state_and_what_is_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show([str(write_run(tmp_path / "a"))]) == 0
    printed = capsys.readouterr().out
    assert "finished   2/9" in printed
    assert "Where it is" in printed
