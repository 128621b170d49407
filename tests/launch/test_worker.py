import json
import sys

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.launch.worker import call, run_guarded


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("a=1 is no b"), 2),
        (ValueError("boom"), 1),
        (SystemExit(7), 7),
        (SystemExit("sorry"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(None), 0),
    ],
)
def test_whatever_is_raised_becomes_an_exit_code(error, code):
    assert run_guarded(lambda: fail(error), None) == code


def test_refusal_is_one_line_and_anything_else_shows_where(capsys):
    run_guarded(lambda: fail(ConfigurationError("a=1 is no b")), None)
    assert capsys.readouterr().err == "a=1 is no b\n"
    run_guarded(lambda: fail(ValueError("boom")), None)
    err = capsys.readouterr().err
    assert "in fail" in err
    assert "worker.py" not in err.replace("test_worker.py", "")


@pytest.mark.parametrize("kind", [ConfigurationError, ValueError, SystemExit])
def test_no_secret_is_in_what_a_rank_says(kind, tmp_path, capsys):
    run_guarded(lambda: fail(kind("postgresql://me:canary@h refused")), str(tmp_path / "error.json"))
    told = capsys.readouterr().err + (tmp_path / "error.json").read_text()
    assert "canary@" not in told
    assert "postgresql://[redacted]@h refused" in told


def test_reason_is_left_where_torchrun_and_the_agent_look(tmp_path):
    run_guarded(lambda: fail(ValueError("boom")), str(tmp_path / "error.json"))
    row = json.loads((tmp_path / "error.json").read_text())
    assert row["message"] == "ValueError: boom"
    assert isinstance(row["timestamp"], int)


def test_entry_point_is_called_with_the_path_and_none_means_done(tmp_path, monkeypatch):
    (tmp_path / "entry_point_example.py").write_text(
        "def length(path):\n    return len(path.name)\n\ndef nothing(path):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert call("entry_point_example:length", tmp_path / "abc") == 3
    assert call("entry_point_example:nothing", tmp_path / "abc") == 0
    sys.modules.pop("entry_point_example")
