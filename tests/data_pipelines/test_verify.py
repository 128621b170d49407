import json

import pytest

from lmtrain.cli.main import main
from tests.data_pipelines.poems import make


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "data")


def test_a_whole_data_set_is_said_to_be_whole(folder, capsys):
    capsys.readouterr()
    assert main(["verify", str(folder)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{folder} is whole\n"
    assert "verify data" in printed.err


def test_each_problem_is_a_line_and_the_exit_code_is_one(folder, capsys):
    (folder / "train_00000.ds").unlink()
    (folder / "extra").write_text("x")
    capsys.readouterr()
    assert main(["verify", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "train_00000.ds is missing" in lines[0]


def test_a_run_is_no_data_and_its_data_are_named(folder, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"data": str(folder)}))
    assert main(["verify", str(tmp_path / "run")]) == 2
    assert f"is a run, and no data folder; the data it reads are `lmtrain verify {folder}`." in capsys.readouterr().err


def test_json_tells_the_same(folder, capsys):
    capsys.readouterr()
    assert main(["verify", "--json", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out) == {str(folder): {"is_whole": True, "problems": []}}
    (folder / "extra").write_text("x")
    assert main(["verify", "--json", str(folder)]) == 1
    answer = json.loads(capsys.readouterr().out)[str(folder)]
    assert not answer["is_whole"]
    assert len(answer["problems"]) == 1


def test_no_data_set_is_a_data_error(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 4
    assert "has no dataset.json" in capsys.readouterr().err
