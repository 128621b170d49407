import io
import re
import sys

import pytest

from data_pipelines import progress
from data_pipelines.progress import StageProgress, stage


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


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


@pytest.mark.parametrize(
    ("totals", "news"),
    [
        ({"total_tokens": 4_000_000}, {"tokens": 1_000_000, "text_bytes": 8_000_000}),
        ({"total_bytes": 8_000_000}, {"text_bytes": 2_000_000}),
        ({"total_documents": 400}, {"documents": 100, "text_bytes": 1_000_000}),
        ({}, {"fraction": 0.25, "documents": 3}),
        ({"total_tokens": 10}, {"fraction": 0.25, "tokens": 1}),
    ],
)
def test_the_time_left_comes_from_whichever_whole_is_known(totals, news, clock):
    done = StageProgress("encode", **totals)
    clock.now = 10.0
    done.advance(**news)
    assert str(done).startswith("  encode                   25%, 30s left, ")
    assert str(done).endswith(", 10.0 s")


def test_without_a_whole_no_time_left_is_made_up(clock):
    done = StageProgress("encode")
    clock.now = 10.0
    done.advance(documents=5)
    assert str(done) == "  encode                   5 documents, 10.0 s"


def test_more_than_was_expected_is_all_of_it():
    done = StageProgress("encode", total_documents=10)
    done.advance(documents=12)
    assert done.fraction_done() == 1


def test_without_a_terminal_a_long_stage_tells_a_line_every_five_seconds(capsys, clock):
    with stage("encode", total_documents=100) as done:
        for second in range(1, 13):
            clock.now = float(second)
            done.advance(documents=1, text_bytes=1_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "  encode                   6%, 1min34s left, 6 documents, 6.0 MB, 1.0 MB/s, 6.0 s ...",
        "  encode                   12%, 1min28s left, 12 documents, 12.0 MB, 1.0 MB/s, 12.0 s ...",
        "  encode                   12 documents, 12.0 MB, 1.0 MB/s, 12.0 s",
    ]


def test_a_stage_that_fails_tells_no_line(capsys):
    with pytest.raises(ValueError, match="no"), stage("encode"):
        raise ValueError("no")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_live_bar_and_the_same_line(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.0)
    with stage("encode", total_bytes=8_000_000) as done:
        done.advance(text_bytes=2_000_000)
        done.advance(text_bytes=6_000_000)
    assert "\x1b[" in terminal.getvalue()
    assert "━" in terminal.getvalue()
    assert re.search(r"  encode +8\.0 MB, [\d.]+ MB/s, 0\.\d s\n$", terminal.getvalue())


def test_a_stage_inside_a_stage_tells_its_line_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with stage("outer"), stage("inner") as done:
        done.advance(documents=1)
    assert re.search(r"  inner +1 documents, 0\.\d s", terminal.getvalue())
    assert re.search(r"  outer +0\.\d s\n$", terminal.getvalue())


def test_a_narrow_terminal_still_shows_the_time_left(monkeypatch, clock):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    with stage("compress validation", total_bytes=400_000_000) as done:
        clock.now = 10.0
        done.advance(documents=1_000_000, tokens=25_000_000, text_bytes=100_000_000)
    assert "    25%, 30s left, 1,000,000 documents, 25.0M" in re.sub(r"\x1b\[[\d;?]*\w", "", terminal.getvalue())


def test_what_an_earlier_build_did_counts_for_no_speed_and_no_time_left(clock):
    progress = StageProgress("encode", total_bytes=100_000_000)
    progress.advance(text_bytes=50_000_000, was_there=True)
    clock.now += 5
    progress.advance(text_bytes=10_000_000)
    assert progress.news == "60%, 20s left, 60.0 MB (50.0 before), 2.0 MB/s, 5.0 s"
