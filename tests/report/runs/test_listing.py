from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.report.runs.listing import footnotes_of, in_brief, lines_of, newest_lines, newest_points, table_of
from lmtrain.report.show import plain_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, RunLog, newest_point
from lmtrain.tracking.status import Status
from tests.points import append_point
from tests.report.compared_folder import write
from tests.report.runs_on_disk import POINTS, write_run


def test_a_run_in_brief_is_its_newest_figures(tmp_path: Path) -> None:
    run = in_brief(write_run(tmp_path / "a"))
    assert (run.name, run.status, run.step, run.num_steps, run.tokens) == ("a", "FINISHED", 2, 9, 200)
    assert (run.loss, run.bits_per_byte, run.scored_step, run.changed_at) == (4.25, 3.5, 0, 1000.0)


@pytest.mark.parametrize(("code", "state"), [(143, "STOPPED"), (130, "STOPPED"), (137, "KILLED")])
def test_a_clean_stop_is_told_from_a_kill(code: int, state: str, tmp_path: Path) -> None:
    assert in_brief(write_run(tmp_path / "a", status=Status("KILLED", code))).status == state


def test_what_has_not_begun_has_no_figures(tmp_path: Path) -> None:
    RunFolder(tmp_path / "a").create()
    run = in_brief(tmp_path / "a")
    assert (run.status, run.step, run.loss, run.num_steps) == ("UNKNOWN", 0, None, None)


def test_the_newest_run_is_the_last_line(tmp_path: Path) -> None:
    runs = [in_brief(write_run(tmp_path / name, changed_at=at)) for name, at in (("late", 2000.0), ("early", 1000.0))]
    append_point(RunLog(tmp_path / "late"), 2, 200, {"validation/bits_per_byte": 3.25})
    runs[0] = replace(in_brief(tmp_path / "late"), changed_at=2000.0)
    head, *lines = plain_text(table_of(runs)).splitlines()
    assert head.split() == ["run", "state", "step", "tokens", "loss", "bits/byte", "clock", "changed"]
    assert [line.split()[:6] for line in lines] == [
        [name, "finished", "2/9", "200", "4.250", score] for name, score in (("early", "-"), ("late", "3.2500"))
    ], "the score before training is none of a run that has trained"


def test_a_score_of_a_smaller_part_of_a_text_is_marked(tmp_path: Path) -> None:
    runs = [in_brief(write(tmp_path / f"{n}", held_out={"num_bytes": n})) for n in (900, 899, 4)]
    lines = sorted(line.split("2.0000")[0].split()[-1] for line in plain_text(table_of(runs)).splitlines()[1:])
    assert lines == ["200", "200", "[1]"], "two scores stand behind their tokens, one behind its mark"
    (note,) = footnotes_of(runs)
    assert note.startswith("[1] Measured on 4 of 1,000 held-out bytes of a book")
    told = [in_brief(write(tmp_path / f"turns{n}", masked=True, held_out={"num_bytes": n})) for n in (90, 4)]
    (note,) = footnotes_of(told)
    assert note.startswith("[1] Measured on the assistant's words, 4 of 1,000 held-out bytes of a book")


def test_a_fork_says_whose_tokens_it_counts(tmp_path: Path) -> None:
    folder = write(tmp_path / "tail")
    (folder / "fork.json").write_text('{"checkpoint": "runs/dog/checkpoints/step_00000001", "step": 1}')
    run = in_brief(folder)
    assert (run.tokens, run.inherited_tokens, run.forked_from) == (200, 100, "runs/dog")
    assert footnotes_of([run]) == ["tail: 100 of its tokens are of runs/dog, no longer there; its clock is its own."]


def test_the_points_of_a_step_are_one_line_and_those_for_nobody_none() -> None:
    assert lines_of(POINTS, 9) == [
        "step 0/9 | 0 tokens | validation 3.5000 bits/byte",
        "step 1/9 | 100 tokens | loss 5.500 | lr 1.00e-02",
        "step 2/9 | 200 tokens | loss 4.250 | lr 2.00e-02 | 1,234 tokens/s",
    ]
    assert lines_of(POINTS[-1:], None) == []
    assert lines_of(POINTS, 9, trained_share=0.2)[-1].endswith(" | 1,234 tokens/s with loss")


def test_a_validation_written_before_the_losses_up_to_it_is_in_its_step_s_line() -> None:
    losses = [Point(1.0, step, 100 * step, {"train/loss": 4.0}) for step in (1, 2)]
    scored = Point(1.0, 2, 200, {BITS_PER_BYTE: 2.5})
    assert lines_of([losses[0], scored, losses[1]], None) == [
        "step 1 | 100 tokens | loss 4.000",
        "step 2 | 200 tokens | loss 4.000 | validation 2.5000 bits/byte",
    ]
    assert lines_of([scored, *losses], None) == lines_of([*losses, scored], None)


def test_as_many_lines_as_asked_for_are_read_however_long_the_log_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmtrain.report.runs.listing.TAIL_BYTES", 150)
    log, whole = write_run(tmp_path / "a") / "metrics.jsonl", lines_of(POINTS, 9)
    assert [newest_lines(log, num, 9) for num in (0, 1, 99)] == [[], whole[-1:], whole]


def test_of_a_long_log_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtrain.report.runs.listing.TAIL_BYTES", 150)
    found = newest_points(write_run(tmp_path / "a") / "metrics.jsonl")
    assert found == [*POINTS[-len(found) :]]
    assert 0 < len(found) < len(POINTS)
    assert newest_point(found, BITS_PER_BYTE) is None
    beside = newest_points(tmp_path / "a" / "metrics.jsonl", beside=BITS_PER_BYTE)
    assert beside == [newest_point(POINTS, BITS_PER_BYTE), *found]
    assert in_brief(tmp_path / "a").scored_step == 0
