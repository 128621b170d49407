import io

import pytest

from lmtrain.cli.commands.evaluating.flags import evaluation_parser
from lmtrain.cli.commands.evaluating.input import read_input
from lmtrain.cli.commands.evaluating.scores import text_keys


def test_each_text_has_a_metric_of_its_own_and_none_that_of_a_split() -> None:
    assert text_keys(["a/notes.txt", "stdin", "test.txt"]) == ["notes", "stdin", "test.txt"]
    assert text_keys(["a/x.txt", "b/x.txt", "x.txt", "/c/x.txt", "b/x.txt"]) == [
        *("x", "x.txt", "x.txt_5", "c_x.txt", "b_x.txt")
    ]


def test_text_from_standard_input_has_a_name_in_its_metric(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    read = read_input(evaluation_parser("evaluate").parse_args(["run", "--text", "-"]))
    assert read.texts == (("stdin", "from a pipe"),)
