import json
import signal
import subprocess
import sys
from contextlib import suppress
from types import ModuleType

import pytest

from lmtrain.cli import main as cli
from lmtrain.cli.command_table import VERBS
from lmtrain.cli.main import main, serve
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.json_output import print_json


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module whose function serves `lmtrain train`: give it a `function`."""
    module = ModuleType("verb_of_a_test")
    monkeypatch.setitem(sys.modules, "lmtrain.cli.commands.verb_of_a_test", module)
    monkeypatch.setitem(cli.VERBS, "train", ("verb_of_a_test:function", "train a model"))
    return module


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_s_help_fits_a_terminal_and_is_its_own(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):  # argparse's end
        main([name, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert 4 < len(lines) <= 60
    assert "hydra" not in " ".join(lines).lower()
    assert "%%" not in " ".join(lines), "argparse expands this in help= alone"


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigurationError("a=1"), 2), (EnvironmentProblem("full disk"), 3), (DataError("no text"), 4)]
)
def test_a_refusal_is_one_line_on_stderr_and_its_exit_code(
    verb: ModuleType, error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(words: list[str], program: str) -> int:
        raise error

    verb.function = refuse
    assert serve("train", [], program="python train.py") == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"lmtrain: {error}\n")


def test_no_secret_is_in_a_refusal_nor_in_a_bugs_traceback(
    verb: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # `serve` sets its own

    def refuse(words: list[str], program: str) -> int:
        raise ConfigurationError("a=http://me:canary@h is no b")

    verb.function = refuse
    assert serve("train", [], program="python train.py") == 2
    bug = RuntimeError("http://me:canary@h is down")
    sys.excepthook(RuntimeError, bug, None)
    told = "lmtrain: a=http://[redacted]@h is no b\nRuntimeError: http://[redacted]@h is down\n"
    assert capsys.readouterr().err == told


def test_an_interruption_is_told_and_has_the_code_of_its_signal(
    verb: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: dict[int, object] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)

    def interrupted(words: list[str], program: str) -> int:
        raise KeyboardInterrupt

    verb.function = interrupted
    assert serve("train", [], program="lmtrain train") == 130
    assert capsys.readouterr().err == "lmtrain: interrupted\n"
    assert handlers == {signal.SIGINT: signal.SIG_IGN}, "a second one does not end the interpreter's own end"


def test_json_is_alone_on_stdout_whatever_a_library_prints(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def noisy(words: list[str], *, program: str) -> int:
        print('{"of": "a library"}\nbegins', end="")
        subprocess.run(["echo", "native code"], check=True)
        print_json({"words": words, "program": program})
        return 0

    monkeypatch.setattr("lmtrain.cli.main.find_verb", lambda verb: noisy)
    assert main(["plan", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"words": ["--json"], "program": "lmtrain plan"}
    assert "native code" in err
    assert "begins" in err
