import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.composition.execution.sweep import run_sweep
from lmtrain.composition.stored_runs.job import Job
from lmtrain.errors import ConfigurationError
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
