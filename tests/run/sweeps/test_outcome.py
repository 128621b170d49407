import json
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.sweeps.outcome import TrialTime, clock_of, outcome_of

METRIC = "validation/loss"


def with_points(folder: Path, *values: float | None) -> Path:
    lines = [
        json.dumps({"time": 0, "step": step, "tokens": 0, "metrics": {METRIC: value}})
        for step, value in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_the_last_value_is_the_score_and_a_stop_is_no_end(tmp_path: Path) -> None:
    run = with_points(tmp_path, 3.0, 2.5)
    assert (outcome_of(run, 0, metric=METRIC).state, outcome_of(run, 0, metric=METRIC).score) == ("finished", 2.5)
    assert (outcome_of(run, 143, metric=METRIC).state, outcome_of(run, 143, metric=METRIC).score) == ("stopped", 2.5)


def test_the_kind_of_a_failure_is_its_state_and_a_refusal_has_words(tmp_path: Path) -> None:
    attempt = tmp_path / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "rank0.error.json").write_text(json.dumps({"message": "reset by peer", "kind": "RuntimeError"}))
    (attempt / "rank1.error.json").write_text(json.dumps({"message": "loss nan", "kind": "Diverged"}))
    found = outcome_of(tmp_path, 3, metric=METRIC)
    assert (found.state, found.reason) == ("diverged", "loss nan")  # the other rank's error follows from it
    assert outcome_of(tmp_path / "none", 2, metric=METRIC, refusal="no").reason == "no"
    assert "SIGKILL" in (outcome_of(tmp_path / "none", 137, metric=METRIC).reason or "")


def test_a_finished_run_without_the_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"sweep\.metric=validation/los is in no point of .*it has val.*Did you"
    ):
        outcome_of(with_points(tmp_path, 1.0), 0, metric="validation/los")


def write_events(folder: Path, *attempts: tuple[float, float]) -> None:
    """Write attempts by their start and last sign of life."""
    rows = [
        row
        for number, (began, heard) in enumerate(attempts, start=1)
        for row in (
            {"name": "attempt", "start": began, "attempt": number, "started_at": began},
            {"name": "accounts", "start": heard},
        )
    ]
    (folder / "events").mkdir(exist_ok=True)
    (folder / "events/rank0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_points(folder: Path, *points: tuple[float, int]) -> None:
    lines = [json.dumps({"time": at, "step": step, "tokens": 0, "metrics": {"a": 1.0}}) for at, step in points]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_a_run_s_first_steps_tell_its_whole_time(tmp_path: Path) -> None:
    clock = clock_of(tmp_path)
    assert clock.look() == TrialTime(spent_seconds=0.0)
    write_events(tmp_path, (100.0, 120.0))
    (tmp_path / "plan.json").write_text(json.dumps({"horizon": {"steps": 100}}))
    write_points(tmp_path, (110.0, 0), (112.0, 1), (114.0, 2))
    assert clock.look().whole_seconds is None  # two seconds and one step are no pace
    write_points(tmp_path, (110.0, 0), (112.0, 1), (118.0, 4))
    found = clock.look()
    assert found.spent_seconds == pytest.approx(20.0, abs=1.0)
    assert (found.whole_seconds, found.steps) == (pytest.approx(20.0 + 96 * 2.0, abs=1.0), 3)


def test_a_resumed_run_counts_its_earlier_attempt_and_times_the_new_one(tmp_path: Path) -> None:
    write_events(tmp_path, (100.0, 150.0))
    write_points(tmp_path, (110.0, 1), (150.0, 40))
    clock = clock_of(tmp_path)
    assert clock.look() == TrialTime(spent_seconds=50.0)  # silence before the new attempt is nobody's
    write_events(tmp_path, (100.0, 150.0), (900.0, 920.0))
    (tmp_path / "plan.json").write_text(json.dumps({"horizon": {"steps": 100}}))
    write_points(tmp_path, (110.0, 1), (150.0, 40), (910.0, 41), (920.0, 51))
    found = clock.look()
    assert (found.spent_seconds, found.steps) == (pytest.approx(70.0, abs=1.0), 10)
    assert found.whole_seconds == pytest.approx(70.0 + 49.0, abs=1.0)


def test_a_budget_of_time_is_its_own_plan(tmp_path: Path) -> None:
    clock = clock_of(tmp_path)
    write_events(tmp_path, (100.0, 101.0))
    (tmp_path / "plan.json").write_text(json.dumps({"horizon": {"steps": 100000, "seconds": 60.0}}))
    assert clock.look().whole_seconds == 60.0
