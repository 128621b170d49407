import json

import pytest

from lmtrain.cli.commands.compare import compare
from lmtrain.errors import ConfigurationError
from tests.report.comparing.test_comparison import sweep


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


def test_compare_refuses_a_target_that_is_no_number(tmp_path):
    with pytest.raises(ConfigurationError, match="--target nan is reached by no run"):
        compare([str(tmp_path), "--target", "nan"])


def test_names_without_their_folder_get_the_whole_command(tmp_path, monkeypatch):
    sweep(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    one, other = sorted(path.parent.name for path in (tmp_path / "runs").glob("*/status.json"))[:2]
    said = f"{one} and {other}: not here .*; write lmtrain compare --json runs/{one} runs/{other}\\.$"
    with pytest.raises(ConfigurationError, match=said):
        compare(["--json", one, other])


def test_compare_states_its_exit_codes(capsys):
    with pytest.raises(SystemExit):
        compare(["--help"])
    assert "Exit codes: 0 compared, 2" in capsys.readouterr().out
