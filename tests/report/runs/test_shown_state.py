from pathlib import Path

import pytest

from lmtrain.report.comparing.compared_run import read_compared_run
from lmtrain.report.runs.listing import in_brief
from lmtrain.report.runs.shown_state import shown_state
from lmtrain.tracking.status import Status, write_status
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial, TrialState
from tests.report import compared_folder
from tests.report.runs_on_disk import write_run

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


def test_a_comparison_names_a_pruned_run_so_without_the_exit_code_of_its_stop(tmp_path: Path) -> None:
    folder = compared_folder.write(tmp_path / "s/trial-0000", values=(8.0, 4.0))
    write_status(folder, STOPPED)
    record(folder, "pruned")
    assert read_compared_run(folder).trouble == "pruned at step 1 of 2"


def test_a_run_of_no_search_or_of_a_damaged_one_is_as_it_says(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", status=STOPPED)
    assert shown_state(folder, STOPPED) == "STOPPED"
    (tmp_path / "sweep.json").write_text("no")
    assert shown_state(folder, STOPPED) == "STOPPED"
