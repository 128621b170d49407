"""docs/accounting.md is what its command writes, and every figure agrees with its reference."""

import shlex
from pathlib import Path

import pytest

from benchmarks.questions.accounting_oracles import COMMANDS, PAGE, Section, page, sections
from lmtrain.cli.main import main


@pytest.fixture(scope="module")
def content() -> list[Section]:
    return sections()


def test_every_figure_agrees_with_its_reference(content: list[Section]) -> None:
    assert [row.what for section in content for row in section.rows if not row.agrees] == []
    assert sum(len(section.rows) for section in content) > 120


def test_the_committed_page_is_what_the_command_writes(content: list[Section]) -> None:
    assert PAGE.read_text() == page(content), "run: python benchmarks/questions/accounting_oracles.py"


def test_mistakes_in_circulation_are_named(content: list[Section]) -> None:
    text = page(content)
    for mistake in ('not "88"', "2:4 sparsity", '"27.4 days"', '"20" counts a reference model', 'not "1.4B"'):
        assert mistake in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_answer(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"\n{command}\n" in PAGE.read_text()
    assert main(shlex.split(command)[1:]) == 0
    assert "<- computed" in capsys.readouterr().out
