"""Reading runs from their folders: found by paths, listed, their attempts and speeds, their facts."""

from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.ledger import read_ledger
from lmtrain.report.runs.attempts import (
    logged_speed,
)
from lmtrain.report.runs.facts import shown_state
from lmtrain.report.runs.find import find_run, find_runs, names_apart
from lmtrain.report.runs.listing import in_brief
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.status import Status
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial, TrialState
from tests.report.compared_folder import write
from tests.report.runs_on_disk import write_run


def test_a_run_a_folder_and_a_sweep_name_runs_and_each_counts_once(tmp_path):
    one, other = write(tmp_path / "a", sweep="sweep-1"), write(tmp_path / "b", sweep="sweep-1")
    third = write(tmp_path / "deep/c")
    assert find_runs([one]) == [one]
    assert find_runs([tmp_path]) == [one, other, third]
    assert find_runs([tmp_path / "sweep-1"]) == [one, other]
    assert find_runs([other, tmp_path]) == [other, one, third]


def test_runs_of_one_name_are_named_with_the_folders_that_tell_them_apart(tmp_path):
    folders = [write(tmp_path / name) for name in ("one/x/a", "two/x/a", "two/b")]
    assert [*names_apart(folders).values()] == ["one/x/a", "two/x/a", "b"]
    above = write(tmp_path / "a")  # in the end of whose path every other ends too
    assert names_apart([*folders, above])[above] == "a"


def test_what_holds_no_run_is_refused_with_the_nearest_path(tmp_path, monkeypatch):
    monkeypatch.chdir("/dev")  # paths below the working folder are named from there
    write(tmp_path / "warm_adamw")
    for name in ("empty", "warm_adam.log"):  # the latter is nearer, and would be refused too
        (tmp_path / name).mkdir()
    with pytest.raises(ConfigurationError, match=rf"holds no run.*Did you mean '{tmp_path}/warm_adamw'"):
        find_runs([tmp_path / "warm_adam"])
    with pytest.raises(ConfigurationError, match="empty holds no run; give runs/NAME"):
        find_runs([tmp_path / "empty"])
    with pytest.raises(ConfigurationError, match="holds no run"):
        find_runs([tmp_path / "sweep-2"])
    for inside in ("checkpoints", "checkpoints/step_00000005", "checkpoints/step_00000005/state.pt", "metrics.jsonl"):
        with pytest.raises(ConfigurationError, match=rf"holds no run.*Did you mean '{tmp_path}/warm_adamw'"):
            find_runs([tmp_path / "warm_adamw" / inside])
    write(tmp_path / "runs/a")
    monkeypatch.chdir(tmp_path)
    for read in (find_run, read_ledger):
        with pytest.raises(ConfigurationError, match=r"Did you mean 'runs/a'\?"):
            read(Path("runs/aa"))
        with pytest.raises(ConfigurationError, match=r"Did you mean 'runs/a'\?"):
            read(tmp_path / "a")
    (tmp_path / "base/weights").mkdir(parents=True)
    (tmp_path / "base/import.json").touch()
    with pytest.raises(ConfigurationError, match=r"base is an imported folder and holds no run; [^?]*$"):
        find_runs([tmp_path / "base"])


def test_a_sweep_of_another_version_is_refused_by_every_reader_and_named_runs_of_it_are_not(tmp_path):
    run = write(tmp_path / "race/trial-0000")
    SweepFile(name="race", kind="search", metric="m", fingerprint="f", command="c").save(tmp_path / "race")
    text = (tmp_path / "race/sweep.json").read_text()
    assert find_runs([tmp_path / "race"]) == [run]
    (tmp_path / "race/sweep.json").write_text(text.replace('"version": 1', '"version": 99'))
    with pytest.raises(DataError, match="is of another version of lmtrain"):
        find_runs([tmp_path / "race"])
    assert find_runs([tmp_path, run]) == [run]


def test_a_run_in_brief_is_its_newest_figures(tmp_path: Path) -> None:
    run = in_brief(write_run(tmp_path / "a"))
    assert (run.name, run.status, run.step, run.num_steps, run.tokens) == ("a", "FINISHED", 2, 9, 200)
    assert (run.loss, run.bits_per_byte, run.scored_step, run.changed_at) == (4.25, 3.5, 0, 1000.0)


def test_a_fork_s_speed_begins_at_its_step():
    points = [Point(0.0, 21, 2100, {"speed/tokens_per_second": 100.0, "speed/timed_seconds": 10.0})]
    found = logged_speed(points, [], first_step=10)
    assert found is not None
    assert (found.seconds, found.tokens_per_second) == (10.0, 100.0)
    assert found.loss_share == pytest.approx(1.0), "eleven steps, the first one untimed"
    assert logged_speed([], [], first_step=10) is None


STOPPED = Status("KILLED", 143, step=2)


def record(folder: Path, state: TrialState) -> None:
    trial = SweepTrial(number=0, values={}, state=state, runs=[SweepRun(folder=folder.name, seed=1)])
    SweepFile(name="s", kind="search", metric="m", fingerprint="f", command="c", trials=[trial]).save(folder.parent)


@pytest.mark.parametrize(
    ("state", "status", "shown"),
    [
        ("pruned", STOPPED, "PRUNED"),
        ("stopped", STOPPED, "STOPPED"),
        ("pruned", Status("FINISHED", 0), "FINISHED"),
        ("pruned", Status("KILLED", 137), "KILLED"),
    ],
)
def test_a_stop_by_its_search_is_told_from_others(
    tmp_path: Path, state: TrialState, status: Status, shown: str
) -> None:
    folder = write_run(tmp_path / "s/trial-0000", status=status)
    record(folder, state)
    assert shown_state(folder, status) == shown
    assert in_brief(folder).status == shown
