import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.execution.grid_record import GridRecord
from lmtrain.run.execution.sweep import run_sweep
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.status import Status, write_status
from lmtrain.tracking.sweep_file import read_sweep
from tests.configs import config_with, default_config


def test_a_grid_leaves_its_trials_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=llama_micro"]
    trials = [
        replace(
            Job(
                config=config_with(seed=seed),
                overrides=[*words, f"seed={seed}"],
                name=f"run-{seed}",
                root=str(tmp_path),
            ),
            sweep="sweep-1",
        )
        for seed in (1, 2)
    ]
    (tmp_path / "run-1").mkdir()
    line = '{"time": 0, "step": 4, "tokens": 8, "metrics": {"validation/bits_per_byte": 1.5}}\n'
    (tmp_path / "run-1" / "metrics.jsonl").write_text(line)
    codes = {"run-1": 0, "run-2": 4}
    assert run_sweep(trials, [(trial, codes[trial.name]) for trial in trials]) == 4
    sweep = read_sweep(tmp_path / "sweep-1")
    assert sweep is not None
    assert [(trial.values, trial.state, trial.score) for trial in sweep.trials] == [
        ({"seed": "1"}, "finished", 1.5),
        ({"seed": "2"}, "failed", None),
    ]
    assert [trial.runs[0].folder for trial in sweep.trials] == ["../run-1", "../run-2"]
    assert (sweep.best, sweep.state, sweep.reason) == (0, "FAILED", "2 of 2 trials have ended")
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / "metrics.jsonl").write_text(line)
    for number in (1, 2):
        (tmp_path / f"run-{number}/dataset.json").write_text(json.dumps({"name": f"text {number}"}))
    run_sweep(trials, [(trial, 0) for trial in trials])
    assert "  The held-out texts differ" in capsys.readouterr().out
    unranked = read_sweep(tmp_path / "sweep-1")
    assert unranked is not None
    assert unranked.best is None


def test_a_named_grid_keeps_its_record_in_its_folder_and_a_second_one_adds_its_trials(tmp_path: Path) -> None:
    def grid(*seeds: int) -> list[Job]:
        named = replace(default_config().run, name="race")
        return [
            Job(config=config_with(run=named, seed=seed), overrides=[f"seed={seed}"], name=f"race/run-{seed}",
                root=str(tmp_path), sweep=f"sweep-{seeds}")
            for seed in seeds
        ]  # fmt: skip

    for seeds in ((1, 2), (2, 3)):
        run_sweep(grid(*seeds), [(trial, 4) for trial in grid(*seeds)])
    sweep = read_sweep(tmp_path / "race")
    assert sweep is not None
    assert [(trial.number, trial.runs[0].folder) for trial in sweep.trials] == [
        (0, "run-2"),
        (1, "run-3"),
        (2, "run-1"),
    ]
    run_sweep(grid(1, 2), [(grid(1)[0], 143)])
    stopped = read_sweep(tmp_path / "race")
    assert stopped is not None
    assert stopped.reason == "0 of 2 trials have ended, 1 stopped", "the same command goes on with it"
    replace(sweep, kind="search").save(tmp_path / "race")
    with pytest.raises(ConfigurationError, match="is a search"):
        run_sweep(grid(4), [])


def test_a_grid_started_again_keeps_what_is_known_of_its_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def grid(resume: str = "auto") -> list[Job]:
        named = replace(default_config().run, name="race")
        return [
            Job(config=config_with(run=named, seed=seed, resume=resume), overrides=[f"seed={seed}"],
                name=f"race/run-{seed}", root=str(tmp_path), sweep="sweep-1")
            for seed in (1, 2, 3)
        ]  # fmt: skip

    def states() -> list[tuple[str, float | None]]:
        found = read_sweep(tmp_path / "race")
        assert found is not None
        return [(trial.state, trial.score) for trial in found.trials]

    for seed in (1, 2, 3):
        line = {"time": 0, "step": 4, "tokens": 8, "metrics": {"validation/bits_per_byte": 1.0 + seed}}
        (tmp_path / f"race/run-{seed}").mkdir(parents=True)
        (tmp_path / f"race/run-{seed}/metrics.jsonl").write_text(json.dumps(line) + "\n")
        write_status(tmp_path / f"race/run-{seed}", Status("FINISHED" if seed < 3 else "KILLED", 0))
    run_sweep(grid(), zip(grid(), (0, 0, 143), strict=True))
    known = [("finished", 2.0), ("finished", 3.0), ("stopped", 4.0)]
    assert states() == known
    GridRecord(grid()).begin()  # and killed
    assert states() == known
    capsys.readouterr()
    assert run_sweep(grid(), [(grid()[0], 130)]) == 130, "stopped before it saw that nothing is left to do"
    sweep = read_sweep(tmp_path / "race")
    assert sweep is not None
    assert (states(), sweep.best) == (known, 0)
    assert (sweep.state, sweep.reason) == ("KILLED", "2 of 3 trials have ended, 1 stopped")
    told = capsys.readouterr().out.splitlines()[:3]
    assert [line.split("  ")[-1] for line in told] == ["done", "done", "not started"]
    write_status(tmp_path / "race/run-2", Status("KILLED", 143))  # it trained on
    run_sweep(grid(), zip(grid(), (0, 143), strict=False))
    assert states() == [known[0], ("stopped", 3.0), known[2]]
    shutil.rmtree(tmp_path / "race/run-1")
    GridRecord(grid()).begin()
    assert states() == [("waiting", None), ("stopped", 3.0), known[2]], "a run that is gone has no score"
    GridRecord(grid(resume="never")).begin()
    assert states() == [("waiting", None)] * 3, "they are trained anew"
