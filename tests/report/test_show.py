import io
import re

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmtrain.report.show import COLUMNS, plain_text, show

PAGE = Text("a page " * 30, style="bold red")


def test_plain_text_has_no_control_characters_and_no_spaces_at_line_ends():
    text = plain_text(PAGE)
    assert "\x1b" not in text
    assert all(line == line.rstrip() and len(line) <= COLUMNS for line in text.splitlines())


def test_soft_wrap_leaves_a_line_whole():
    assert plain_text(PAGE, soft_wrap=True).count("\n") == 1


def test_a_row_under_a_head_is_one_line_and_prose_beside_it_is_not():
    name, table = "sw/" + "long-name" * 15, Table("run", "words", box=None)
    table.add_row(name, "two words " * 12)
    lines = plain_text(Group(table, PAGE)).splitlines()
    assert lines[1].split() == [name, *["two", "words"] * 12]
    assert all(len(line) <= COLUMNS for line in lines[2:])


@pytest.mark.parametrize("is_terminal", [False, True])
def test_only_a_terminal_gets_colour(monkeypatch, is_terminal):
    class Output(io.StringIO):
        def isatty(self):
            return is_terminal

    output = Output()
    monkeypatch.setattr("sys.stdout", output)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(PAGE)
    assert ("\x1b" in output.getvalue()) is is_terminal


@pytest.mark.parametrize("is_terminal", [False, True])
def test_brackets_and_colons_are_shown_as_they_are(monkeypatch, is_terminal):
    class Output(io.StringIO):
        def isatty(self):
            return is_terminal

    output = Output()
    monkeypatch.setattr("sys.stdout", output)
    table = Table()
    table.add_column("choice")
    table.add_row("source.paths=[/data/notes] :smile:")
    show(table)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue())
    assert "source.paths=[/data/notes] :smile:" in shown


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_name_of_somebody_else_s_folder_commands_no_terminal(monkeypatch, is_terminal):
    class Output(io.StringIO):
        def isatty(self):
            return is_terminal

    output = Output()
    monkeypatch.setattr("sys.stdout", output)
    table = Table("name\x1b[2J", "\u202emodnar")
    table.add_row("\x1b]0;mine\x07", "\x9b31m\rover\u2066")
    show(table)
    show(Text("a\x1bb\xa0\u3000c"), soft_wrap=True)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue())
    assert not set(shown) & set("\x1b\x07\x9b\r\u202e\u2066")
    assert "\xa0\u3000" in shown
