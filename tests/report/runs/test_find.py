import os
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.runs.find import find_run, find_runs, names_apart
from lmtrain.report.ledger.run_ledger import read_ledger
from lmtrain.tracking.sweep_file import SweepFile
from tests.report.compared_folder import write


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
    assert names_apart([*folders, above])[above] == f"{tmp_path.name}/a"


def test_what_holds_no_run_is_refused_with_the_nearest_path(tmp_path, monkeypatch):
    monkeypatch.chdir("/dev")  # paths below the working folder are named from there
    write(tmp_path / "warm_adamw")
    for name in ("empty", "warm_adam.log"):  # the latter is nearer, and would be refused too
        (tmp_path / name).mkdir()
    with pytest.raises(ConfigurationError, match=rf"holds no run.*Did you mean '{tmp_path}/warm_adamw'"):
        find_runs([tmp_path / "warm_adam"])
    with pytest.raises(ConfigurationError, match="empty holds no run; give a run's folder, as runs/NAME"):
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


def test_one_run_is_asked_for_and_a_sweep_s_newest_is_named(tmp_path, monkeypatch):
    run = write(tmp_path / "race/trial-0000")
    monkeypatch.chdir(tmp_path)
    assert find_run(Path("race")) == run
    newest = write(tmp_path / "race/trial-0001")
    os.utime(newest / "status.json", (9e9, 9e9))
    with pytest.raises(ConfigurationError, match=r"^race holds 2 runs; name one of them, as race/trial-0001\.$"):
        find_run(Path("race"))
