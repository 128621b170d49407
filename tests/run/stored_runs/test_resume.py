"""Where a run continues, how it forks another run, and what is left to do: by checkpoints that hold no tensors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmtrain.accounting.budgets import Horizon
from lmtrain.data.interleave import PhasesRead
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.execution.run import execute
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.stored_runs.resume import (
    find_checkpoint,
    fork_step,
    nothing_left,
    phases_read,
    remember_fork,
)
from lmtrain.storage.hashed_folder import write_atomically
from lmtrain.tracking.fork import Fork, read_fork
from lmtrain.tracking.run_log import read_points
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts
from tests.configs import config_with


def save(run_folder: Path, step: int) -> Path:
    path = run_folder / "checkpoints" / f"step_{step:08d}"
    facts = {"step": step, "tokens": step * 64, "identity": {}}
    write_atomically(path, facts=facts, write=lambda aside: (aside / "state.pt").write_bytes(b"weights"))
    return path


def resuming(root: Path, resume: str) -> Job:
    return Job(config=config_with(resume=resume), overrides=[], name="cat", root=str(root))


def step_of(job: Job) -> int | None:
    facts = find_checkpoint(job)
    return facts.step if facts else None


@pytest.mark.parametrize(("resume", "step"), [("auto", 20), ("must", 20), ("never", None)])
def test_a_run_goes_on_from_its_newest_checkpoint_unless_told_never(
    tmp_path: Path, resume: str, step: int | None
) -> None:
    save(tmp_path / "cat", 9)
    save(tmp_path / "cat", 20)
    assert step_of(resuming(tmp_path, resume)) == step


def test_a_run_without_checkpoints_starts_anew_or_is_refused_as_told(tmp_path: Path) -> None:
    assert step_of(resuming(tmp_path, "auto")) is None
    with pytest.raises(ConfigurationError, match=r"resume=must, but .*cat holds no checkpoint; use resume=auto"):
        find_checkpoint(resuming(tmp_path, "must"))


@pytest.mark.parametrize("resume", ["nowhere", "atuo", "dog"])
def test_a_path_without_a_checkpoint_is_refused(tmp_path: Path, resume: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dog" / "checkpoints").mkdir(parents=True)
    (tmp_path / "early" / "attempts" / "1").mkdir(parents=True)
    (tmp_path / "early" / "attempts" / "1" / "job.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"resume=early has no checkpoint yet.*run\.name=early"):
        find_checkpoint(resuming(tmp_path, "early"))
    with pytest.raises(ConfigurationError, match=f"resume: must be auto, must, never, .* got {resume}"):
        find_checkpoint(resuming(tmp_path, resume))


@pytest.mark.faults
@pytest.mark.parametrize("resume", ["auto", "must", "cat"])
def test_a_damaged_checkpoint_is_passed_over_aloud(
    tmp_path: Path, resume: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "cat", 9)
    (save(tmp_path / "cat", 20) / "state.pt").unlink()
    assert step_of(resuming(tmp_path, resume)) == 9
    assert capsys.readouterr().err == "step_00000020 is damaged: state.pt is missing; using an older checkpoint\n"


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_a_run_whose_checkpoints_are_all_damaged_does_not_start(tmp_path: Path, resume: str) -> None:
    (save(tmp_path / "cat", 9) / "state.pt").unlink()
    with pytest.raises(EnvironmentProblem, match=r"No checkpoint in .* is whole.*Start again with resume=never"):
        find_checkpoint(resuming(tmp_path, resume))


def fork(root: Path, resume: Path | str) -> int | None:
    """Begin the run "cat" as `resume` says, up to its first step; return the step at which it left another run."""
    job = resuming(root, str(resume))
    checkpoint = find_checkpoint(job)
    assert checkpoint is not None
    (root / "cat").mkdir(exist_ok=True)
    remember_fork(job, checkpoint)
    return fork_step(job, checkpoint)


def test_the_same_command_goes_on_with_the_fork(tmp_path: Path) -> None:
    origin = save(tmp_path / "dog", 9)
    fork(tmp_path, origin)
    assert step_of(resuming(tmp_path, str(origin))) == 9
    save(tmp_path / "cat", 12)
    for resume in (str(origin), "auto", "must"):
        job = resuming(tmp_path, resume)
        assert step_of(job) == 12, "its own newest checkpoint"
        assert fork_step(job, find_checkpoint(job)) == 9


def test_a_fork_killed_before_its_first_save_begins_where_it_did(tmp_path: Path) -> None:
    origin = save(tmp_path / "dog", 9)
    fork(tmp_path, origin)
    assert step_of(resuming(tmp_path, "auto")) == 9
    (tmp_path / "cat/fork.json").write_text(json.dumps({"checkpoint": str(origin), "step": 9, "run": "one"}))
    (tmp_path / "dog/run.json").write_text(json.dumps({"run": "another"}))
    with pytest.raises(
        ConfigurationError, match=r"cat began from .*/dog/checkpoints/step_00000009, of a run that no longer"
    ):
        find_checkpoint(resuming(tmp_path, "auto"))


def test_a_run_that_began_elsewhere_is_not_forked_anew(tmp_path: Path) -> None:
    save(tmp_path / "cat", 12)
    older, newer = (save(tmp_path / "dog", step) for step in (9, 20))
    with pytest.raises(ConfigurationError, match=r"cat began at step 0 and has its own checkpoints; choose another"):
        find_checkpoint(resuming(tmp_path, str(older)))
    (tmp_path / "cat" / "fork.json").write_text(json.dumps({"checkpoint": str(older), "step": 9}))
    with pytest.raises(ConfigurationError, match=r"began from .*step_00000009 .*or resume=auto to continue"):
        find_checkpoint(resuming(tmp_path, str(newer)))


def points(job: Job, metric: str) -> dict[int, float]:
    found = read_points(job.folder / "metrics.jsonl")
    return {point.step: point.metrics[metric] for point in found if metric in point.metrics}


def files_of(job: Job) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()}


def test_a_cool_down_goes_on_from_a_checkpoint_and_leaves_its_run_as_it_is(
    tiny_job: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("optimizer=adamw", "optimizer.lr=0.01")
    main, straight = tiny_job(*common, "budget.steps=4", name="main"), tiny_job(*common, "budget.steps=8", name="long")
    assert execute(main) == execute(straight) == 0
    before = files_of(main)
    saved = main.folder / "checkpoints" / "step_00000004"
    tail = tiny_job(*common, "schedule=cooldown", "budget.steps=8", f"resume={saved}", name="tail")
    tail.folder.mkdir(parents=True)
    assert execute(tail) == 0
    assert "tail continues from" in capsys.readouterr().out
    assert files_of(main) == before
    assert points(tail, "train/lr") == pytest.approx({5: 0.01, 6: 0.0075, 7: 0.005, 8: 0.0025})
    mine, theirs = points(tail, "train/loss"), points(straight, "train/loss")
    assert [*mine] == [5, 6, 7, 8]
    assert [mine[5], mine[6]] == [theirs[5], theirs[6]], "the same data, weights, and optimizer state"
    assert mine[8] != theirs[8]
    noted = read_fork(tail.folder)
    assert noted is not None
    assert noted == Fork(checkpoint=saved.resolve(), step=4)
    assert Path(noted.run).resolve() == main.folder.resolve()
    assert execute(tail) == 0
    assert "Nothing left to do" in capsys.readouterr().out


OF_TIME = Horizon(steps=100_000, tokens=10**8, flops=10**12, limited_by="hours", seconds=100.0, time_limit="hours")


@pytest.mark.parametrize(("earlier_seconds", "is_spent"), [(99.0, False), (100.0, True), (500.0, True)])
def test_a_budget_of_time_is_spent_by_all_attempts_together(
    tmp_path: Path, earlier_seconds: float, is_spent: bool
) -> None:
    facts = CheckpointFacts(path=tmp_path / "checkpoints/step_40", step=40, tokens=4000, identity={}, metrics={})
    assert bool(nothing_left(OF_TIME, facts, folder=tmp_path, spent_seconds=earlier_seconds)) is is_spent
    for seconds, steps in ((100.0, 41), (90.0, 40), (100.0, 40)):  # of an earlier end, the last one the same
        (tmp_path / "plan.json").write_text(json.dumps({"horizon": {"steps": steps, "seconds": seconds}}))
        found = nothing_left(OF_TIME, facts, folder=tmp_path, spent_seconds=earlier_seconds)
        assert bool(found) is (is_spent or (seconds, steps) == (100.0, 40))


PHASES = [[0, [0.75, 0.25]], [80, [0.0, 1.0]]]


def write_phases(folder: Path, phases: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.json").write_text(json.dumps({"data": "data/a", "phases": phases}))
    return folder


def test_the_phases_are_those_of_the_attempt_that_wrote_the_checkpoint(tmp_path: Path) -> None:
    write_phases(tmp_path / "attempts" / "1", PHASES)
    write_phases(tmp_path / "attempts" / "2", PHASES[:1])
    path = tmp_path / "checkpoints" / "step_00000007"
    facts = CheckpointFacts(path=path, step=7, tokens=1, identity={}, metrics={}, attempt=1)
    placed = [(0, (0.75, 0.25)), (80, (0.0, 1.0))]
    assert phases_read(facts) == PhasesRead(phases=placed, step=7)
    assert phases_read(None) is None
