from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmtrain.cli.commands.train import train
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.run.stored_runs.job import Job, default_name
from lmtrain.run.sweeps.runners import LocalRunner
from lmtrain.tracking.sweep_file import read_sweep


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Collect the jobs that would have been started; those of seed 2 fail."""
    started: list[Job] = []

    def start(job: Job, **settings: Any) -> int:
        started.append(job)
        return DataError.exit_code if job.config.seed == 2 else 0

    def start_trial(_: LocalRunner, job: Job, path: Path, *, slot: int) -> SimpleNamespace:
        code = start(job)
        return SimpleNamespace(exit_code=lambda: code)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lmtrain.run.execution.start.start", start)
    monkeypatch.setattr(LocalRunner, "start", start_trial)
    return started


def test_the_flags_of_a_command_are_those_of_its_run_and_its_sweep(jobs: list[Job], tmp_path: Path) -> None:
    (tmp_path / "mine/optimizer").mkdir(parents=True)
    (tmp_path / "mine/optimizer/own.yaml").write_text("defaults: [adamw]\nlr: 0.5\n")
    flags = ["--config-dir", "mine", "--allow-target", "my_package."]
    train(["-m", "optimizer=own", *flags, "seed=3,4", "run.name=cat", "logger=none"])
    assert [job.kept_flags for job in jobs] == [flags, flags]
    sweep = read_sweep(tmp_path / "runs/cat")
    assert sweep is not None
    assert "-m --config-dir mine --allow-target my_package. optimizer=own" in sweep.command


def test_what_is_added_for_a_budget_or_a_launcher_does_not_rename_a_run(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(["budget.steps=5"])
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    train(["budget.steps=5"])
    assert jobs[0].name == jobs[1].name
    assert [(job.config.trainer.devices, job.config.trainer.num_nodes) for job in jobs] == [(1, 1), (2, 2)]


def test_a_failing_trial_does_not_end_the_sweep_and_the_worst_exit_code_counts(
    jobs: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(["-m", "seed=1,2,3", "logger=none"]) == 4
    assert [job.config.seed for job in jobs] == [1, 2, 3]
    printed = capsys.readouterr()
    ends = [line.split()[:3] for line in printed.out.splitlines() if line.startswith("  trial")]
    assert ends == [["trial", "0", "finished"], ["trial", "1", "failed"], ["trial", "2", "finished"]]
    assert f"side by side: lmtrain compare runs/{jobs[0].sweep}\n" in printed.out, "all trials have this sweep"


def test_a_sweep_under_a_launcher_of_ranks_is_refused(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(EnvironmentProblem, match="run it once, without torchrun or srun"):
        train(["-m", "seed=1,2"])
    assert not jobs


def test_all_trials_are_checked_before_the_first_trains(jobs: list[Job]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"optimizer\.lr.*trial 2 of 2 \(optimizer\.lr=-1 logger=none\); no trial"
    ):
        train(["-m", "optimizer.lr=0.01,-1", "logger=none"])
    assert jobs == []


@pytest.mark.parametrize("named", [[], ["run.name=cat"]])
def test_a_run_that_must_go_on_has_begun(jobs: list[Job], named: list[str]) -> None:
    words = [*named, "resume=must", "seed=3"]
    folder = Path("runs", "cat" if named else default_name("llama_tiny", words))
    with pytest.raises(ConfigurationError, match=f"{folder} holds no checkpoint; use resume=auto"):
        train(words)
    (folder / "checkpoints" / "step_00000002").mkdir(parents=True)
    train(words)
    assert [Path(job.root) / job.name for job in jobs] == [folder.absolute()]
