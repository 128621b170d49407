import io
import re
import sys

import pytest

from data_pipelines import progress
from data_pipelines.progress import stage


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self):
        return True


def test_a_stage_is_one_line_on_standard_error(capsys):
    with stage("encode train") as done:
        done.advance(documents=1200, tokens=3_400_000, text_bytes=7_000_000)
        done.advance(documents=34, tokens=100_000, text_bytes=1_000_000)
        done.notes.append("a note")
    captured = capsys.readouterr()
    assert captured.out == ""
    line = r"  encode train             1,234 documents, 3\.5M tokens, 8\.0 MB, [\d.]+ MB/s, \d+\.\d s, a note\n"
    assert re.fullmatch(line, captured.err)


def test_little_text_has_no_rate(capsys):
    with stage("encode") as done:
        done.advance(text_bytes=1500)
    assert re.fullmatch(r"  encode +1\.5 kB, 0\.0 s\n", capsys.readouterr().err)


def test_a_long_stage_tells_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_LINE_SECONDS", 0.0)
    with stage("encode") as done:
        done.advance(documents=1)
    assert re.fullmatch(
        r"  encode +1 documents, 0\.0 s \.\.\.\n  encode +1 documents, 0\.0 s\n", capsys.readouterr().err
    )


def test_a_stage_that_fails_tells_no_line(capsys):
    with pytest.raises(ValueError, match="no"), stage("encode"):
        raise ValueError("no")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_live_bar_and_the_same_line(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with stage("encode", total_bytes=8_000_000) as done:
        done.advance(text_bytes=2_000_000)
        done.advance(text_bytes=6_000_000)
    assert "\x1b[" in terminal.getvalue()
    assert re.search(r"  encode +8\.0 of 8\.0 MB, [\d.]+ MB/s, 0\.\d s\n$", terminal.getvalue())
