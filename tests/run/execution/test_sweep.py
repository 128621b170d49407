import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, ConfigurationError, DataError, EnvironmentProblem
from lmtrain.run.execution.sweep import (
    naming_trial,
    one_after_another,
    print_outcomes,
    run_sweep,
    swept_keys,
)
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.following import NoTracking
from lmtrain.tracking.run_folder import ask_to_stop
from lmtrain.training.stopping import StoppedEarly, stopping_at_once
from tests.configs import config_with


def trials(*names: str) -> list[Job]:
    return [
        Job(config=config_with(), overrides=[f"seed={name}"], name=name, root="runs", sweep="sweep-1") for name in names
    ]


def sweep(jobs: list[Job], start: Callable[[Job], int]) -> int:
    return run_sweep(jobs, one_after_another(jobs, start))


def test_swept_keys_have_several_values() -> None:
    assert swept_keys([["a=1", "+b=2", "c=3"], ["a=1", "+b=3"]]) == {"b"}
    assert swept_keys([]) == frozenset()


@pytest.mark.parametrize("code", [EXIT_INTERRUPTED, EXIT_TERMINATED])
def test_a_stop_from_outside_ends_the_sweep_and_not_its_trial_alone(
    code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(NoTracking, "finish_sweep", lambda *args, **facts: ended.append(facts["status"]))
    codes = {"a": 4, "b": code, "c": 0}
    assert sweep(trials("a", "b", "c"), lambda trial: codes[trial.name]) == code
    assert ended == ["KILLED"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  a  failed, exit code 4"
    assert lines[1] == f"  b  stopped, exit code {code}; the same command goes on"
    assert lines[2] == "  c  not started"


def test_a_signal_too_late_for_its_trial_ends_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    def start(trial: Job) -> int:
        with stopping_at_once(), suppress(StoppedEarly):  # as a run whose last step is saved
            signal.raise_signal(signal.SIGTERM)
        return 0

    assert sweep(trials("a", "b"), start) == EXIT_TERMINATED
    assert capsys.readouterr().out.splitlines()[:2] == ["  a  done", "  b  not started"]
    assert sweep(trials("a"), start) == 0, "nothing was left to stop"


def test_the_last_lines_stand_also_when_ctrl_c_comes_between_two_trials(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(NoTracking, "finish_sweep", lambda *args, **facts: ended.append(facts["status"]))

    def start(trial: Job) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(trials("a", "b"), start)
    assert ended == ["KILLED"]
    last = "  side by side: lmtrain compare runs/sweep-1\n  as a page: lmtrain report runs/sweep-1\n"
    assert capsys.readouterr().out.endswith(last)


def test_a_wish_in_the_sweep_s_folder_ends_it_before_its_next_trial(tmp_path: Path) -> None:
    jobs, started = [replace(job, root=str(tmp_path)) for job in trials("a", "b")], []

    def start(trial: Job) -> int:
        started.append(trial.name)
        ask_to_stop(tmp_path / "sweep-1")
        return 0

    with pytest.raises(KeyboardInterrupt):
        sweep(jobs, start)
    assert started == ["a"]


def test_a_trial_that_is_refused_later_does_not_end_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    def start(trial: Job) -> int:
        if trial.name == "a":
            raise DataError("the shards are damaged")
        return 0

    assert sweep(trials("a", "b"), start) == DataError.exit_code
    assert "a: the shards are damaged" in capsys.readouterr().err


def test_a_trial_that_cannot_be_is_named_by_its_overrides() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"trial 2 of 2 \(seed=b\); no trial was started"),
        naming_trial([["seed=a"], ["seed=b"]], 1),
    ):
        raise ConfigurationError("seed=b is not a number.")
    with (
        pytest.raises(EnvironmentProblem, match=r"no GPU\. This is trial 1 of 1 \(trainer.accelerator=cuda\)"),
        naming_trial([["trainer.accelerator=cuda"]], 0),
    ):
        raise EnvironmentProblem("this machine has no GPU.")


def test_outcomes_stand_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_outcomes({"a": 0, "longer": 3})
    assert capsys.readouterr().out == "  a       done\n  longer  failed, exit code 3\n"


def test_the_clock_of_a_trial_begins_when_it_starts() -> None:
    began: list[float] = []
    made = time.monotonic()
    sweep(trials("a", "b"), lambda trial: began.append(trial.began) or 0)
    assert made < began[0] < began[1]
