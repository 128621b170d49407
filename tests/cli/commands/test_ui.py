import pytest

from lmtrain.cli.commands.ui import ui
from lmtrain.errors import EnvironmentProblem


def test_ui_without_any_run_is_an_environment_problem(tmp_path):
    with pytest.raises(EnvironmentProblem, match="nothing was tracked there"):
        ui([str(tmp_path)])
