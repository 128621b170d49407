import os
from pathlib import Path

import pytest

from lmtrain.run.stored_runs.checkpoint_source import find_source
from lmtrain.run.stored_runs.resume import no_checkpoint
from lmtrain.errors import ConfigurationError
from lmtrain.report.runs.find import find_run
from lmtrain.report.runs.nearest import nearest_run
from lmtrain.report.ledger.run_ledger import read_ledger
from lmtrain.tracking.sweep_file import SweepFile, SweepRun, SweepTrial
from tests.report.compared_folder import write


def of_age(folder: Path, seconds: float, *, with_checkpoint: bool = True) -> Path:
    """Write a run that changed so many seconds after 1970."""
    write(folder)
    if with_checkpoint:
        (folder / "checkpoints/step_00000005").mkdir(parents=True)
    os.utime(folder / "status.json", (seconds, seconds))
    return folder


def resume_from(path: Path) -> None:
    raise no_checkpoint(path)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Five runs below runs/: one alone, the newest of all, and two trials each of a sweep and of a pipeline."""
    monkeypatch.chdir(tmp_path)
    of_age(tmp_path / "runs/other", 9e9)
    for number, seconds in ((0, 1e9), (1, 2e9)):
        of_age(tmp_path / f"runs/opt/trial-000{number}", seconds)
        of_age(tmp_path / f"runs/chat/{number}", seconds, with_checkpoint=not number)
    return tmp_path / "runs"


def test_a_folder_s_own_run_is_named_the_best_of_a_sweep_else_the_newest_trained(runs):
    near = {"runs/opt": "runs/opt/trial-0001", "runs/chat": "runs/chat/0"}
    for folder, own in near.items():
        for message, read in (
            (rf"nearest valid: {own}\.$", lambda path: find_source(path, key="RUN")),
            (rf"nearest valid: resume={own}\.$", resume_from),
            (rf"Did you mean '{own}'\?$", lambda path: read_ledger(path.absolute())),
            (rf"holds 2 runs; name one of them, as {own}\.$", find_run),
        ):
            with pytest.raises(ConfigurationError, match=message):
                read(Path(folder))
    trials = [
        SweepTrial(
            number=n, values={}, state="finished", score=1.0 + n, runs=[SweepRun(folder=f"trial-000{n}", seed=1)]
        )
        for n in range(2)
    ]
    sweep = SweepFile(name="opt", kind="search", metric="m", fingerprint="f", command="c", trials=trials)
    sweep.save(runs / "opt")
    assert nearest_run(runs / "opt") == Path("runs/opt/trial-0000"), "the best"
    (runs / "opt/sweep.json").write_text('{"version": 99}')
    assert nearest_run(runs / "opt") == Path("runs/opt/trial-0001"), "of a sweep that nobody can read the newest"


def test_a_run_of_a_like_name_is_found_beside_the_path_and_below_runs(runs):
    assert nearest_run(Path("othr")) == nearest_run(Path("runs/othr")) == Path("runs/other")
    assert nearest_run(Path("other")) == nearest_run(Path("runs/other/checkpoints/step_5")) == Path("runs/other")
    assert (nearest_run(Path("runs/opts")), nearest_run(Path("zzz"))) == (None, None)
    assert nearest_run(Path("runs/opts"), takes_folders=True) == Path("runs/opt")
