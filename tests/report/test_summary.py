"""The last page of a run in the terminal."""

import json

from lmtrain.report.runs.facts import RunRecord
from lmtrain.report.show import plain_text
from lmtrain.report.summary import page


def summarize(folder):
    return plain_text(page(RunRecord(folder)), soft_wrap=True)


def test_it_has_cost_scores_and_checkpoints(folder):
    text = summarize(folder)
    assert "3.0K tokens in 300 steps, 200 tokens/s (timed over 15s after the first step), $1.50" in text
    start = text.splitlines().index("Bits per byte of held-out text: all, 4,999 bytes, windows of 256 tokens")
    assert [line.split() for line in text.splitlines()[start + 1 : start + 5]] == [
        ["before", "training", "8.030"],
        ["gzip", "-9", "1.930"],
        ["xz", "-9e", "1.586"],
        ["after", "training", "1.450"],
    ]
    assert f"{folder}/checkpoints/step_00000300\n" in text
    assert f"best checkpoint (1.400)   {folder}/checkpoints/step_00000200\n" in text


def test_a_sample_cannot_command_the_terminal(folder):
    (folder / "samples.jsonl").write_text(json.dumps({"text": "a\x1b[31m[bold]b\x07"}) + '\n{"torn')
    text = summarize(folder)
    assert not set(text) & {"\x1b", "\x07"}
    assert "[bold]b" in text
