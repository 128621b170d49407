"""The record of a run, and its held-out scores."""

import json

import pytest

from lmtrain.report.runs.facts import RunRecord
from lmtrain.report.runs.held_out import comparable, held_out_text
from lmtrain.report.runs.listing import in_brief
from lmtrain.tracking.run_log import Point, RunLog
from tests.points import append_point
from tests.report.conftest import write


def test_speed_is_all_tokens_over_all_seconds_not_a_mean_of_speeds(folder):
    record = RunRecord(folder)
    assert record.tokens_per_second == pytest.approx(3000 / (10 + 5))
    assert record.speed is not None
    assert record.speed.seconds == pytest.approx(15)
    assert record.usd == 1.5


def test_padding_is_in_the_seconds_and_not_in_the_speed(folder):
    append_point(RunLog(folder), 500, 5000, {"speed/tokens_per_second": 50.0, "speed/timed_seconds": 20.0})
    record = RunRecord(folder)
    assert record.speed is not None
    assert record.speed.seconds == pytest.approx(10 + 5 + 20)
    assert record.tokens_per_second == pytest.approx((3000 + 1000) / 35)
    assert record.loss_share == pytest.approx(4000 / 4990), "the first step is not timed"


def test_the_first_step_of_a_resume_and_steps_that_are_done_again_are_no_padding(tmp_path):
    rows = [{"name": "attempt", "start": 0.0, "attempt": 1}, {"name": "ledger", "start": 1.0, "step": 0},
            {"name": "attempt", "start": 90.0, "attempt": 2}, {"name": "ledger", "start": 91.0, "step": 6}]  # fmt: skip
    (tmp_path / "events").mkdir()
    (tmp_path / "events/rank0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, seconds in ((4, 30.0), (9, 20.0)):  # steps 2 to 4, and 8 and 9
        timed = {"speed/tokens_per_second": 100.0, "speed/timed_seconds": seconds}
        append_point(RunLog(tmp_path), step, step * 1000, timed)
    assert RunRecord(tmp_path).loss_share == 1.0


def test_scores_of_an_earlier_checkpoint_posted_later_do_not_set_the_run_back(folder):
    append_point(RunLog(folder), 200, 2000, {"evaluation/validation/bits_per_byte": 1.4})
    assert (RunRecord(folder).step, RunRecord(folder).tokens) == (300, 3000)
    assert (in_brief(folder).step, in_brief(folder).tokens) == (300, 3000)


def test_held_out_scores_are_the_first_and_the_last_next_to_compressors(folder):
    held_out = RunRecord(folder).held_out
    assert held_out is not None
    assert (held_out.before, held_out.after, held_out.part_words) == (8.03, 1.45, "all, 4,999 bytes")
    assert held_out.references == {"gzip -9": 1.93, "xz -9e": 1.586}


def test_a_score_of_conversations_is_of_the_assistants_words_without_a_compressor(folder):
    split = {"text_bytes": 5000, "shards": [{"file": "a", "mask_sha256": "0"}]}
    references = {"validation": {"gzip_bits_per_byte": 1.9}}
    write(folder / "dataset.json", {"splits": {"validation": split}, "references": references})
    found = RunRecord(folder).held_out
    assert found is not None
    assert found.part_words == "the assistant's words, 4,999 of 5,000 bytes"
    assert "gzip" not in str(found.worst_first()), "it read the users' turns too"
    assert held_out_text(folder, RunRecord(folder).points, split="validation").is_assistant


def test_scores_of_other_bytes_than_the_newest_go_and_all_else_stays():
    scored = [
        {"validation/bits_per_byte": 1.0, "validation/num_bytes": each, "train/loss": 2.0} for each in (10, 20, 20)
    ]
    kept = comparable([Point(0.0, step, step, metrics) for step, metrics in enumerate(scored)])
    assert [sorted(point.metrics) for point in kept[:2]] == [
        ["train/loss"],
        ["train/loss", "validation/bits_per_byte", "validation/num_bytes"],
    ]
