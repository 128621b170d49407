from pathlib import Path

import pytest

from lmtrain.cli.commands import stop as module
from lmtrain.cli.commands.stop import stop
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.run_folder import is_asked_to_stop
from lmtrain.tracking.status import Status, write_status
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial
from tests.report.runs_on_disk import write_run


@pytest.mark.parametrize(
    ("ended", "code", "told"),
    [
        (Status("KILLED", 143), 0, "a stopped at step 2; the same command continues"),
        (Status("FINISHED", 0), 0, "a finished at step 2, before it could be stopped\n"),
        (Status("KILLED"), 1, "a killed at step 2, without a final checkpoint; the same"),
        (Status("FAILED", 1), 1, "a failed at step 2, without a final checkpoint; the same"),
    ],
)
def test_a_run_under_way_is_asked_and_waited_for_and_its_end_is_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ended: Status,
    code: int,
    told: str,
) -> None:
    folder = write_run(tmp_path / "a", status=Status("RUNNING"))

    def end(_: float) -> None:
        assert is_asked_to_stop(folder)
        write_status(folder, ended)

    monkeypatch.setattr(module.time, "sleep", end)
    assert stop([str(folder)]) == code
    assert capsys.readouterr().out.startswith(told)


def test_a_run_that_has_ended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not running: finished"):
        stop([str(write_run(tmp_path / "a"))])


def test_a_sweep_and_its_runs_are_asked_and_the_sweep_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = tmp_path / "race"
    run, ended = write_run(sweep / "trial-0001", status=Status("RUNNING")), write_run(sweep / "trial-0000")
    file = SweepFile(name="race", kind="search", metric="m", fingerprint="f", command="c", trials=[
        SweepTrial(number=0, values={}, state="finished"), SweepTrial(number=1, values={}, state="waiting"),
    ])  # fmt: skip
    file.save(sweep)
    with pytest.raises(ConfigurationError, match="race is not running: no process holds the sweep"):
        stop([str(sweep)])
    looks = iter([True, True, False])
    monkeypatch.setattr(module, "is_under_way", lambda folder: next(looks))
    assert stop([str(sweep)]) == 0
    assert [is_asked_to_stop(folder) for folder in (sweep, run, ended)] == [True, True, False]
    assert capsys.readouterr().out.startswith("race stopped: trials 1 finished, 1 waiting; the same command")
