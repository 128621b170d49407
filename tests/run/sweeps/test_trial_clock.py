import json
from pathlib import Path

import pytest

from lmtrain.run.sweeps.trial_clock import TrialTime, clock_of


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
