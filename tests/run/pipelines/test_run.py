import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lmtrain.run.pipelines import run as module
from lmtrain.run.pipelines.run import Stops, done_stages, run_preflight, run_stages
from lmtrain.run.pipelines.stages import CommandPipeline, read_pipeline
from lmtrain.tracking.scores import keep_scores
from lmtrain.tracking.status import Status, write_status
from lmtrain.training.stopping import handling
from tests.launch.slurm_cluster import poll

NAMES = ["base", "base_text", "base_answers", "talker", "talker_answers", "exported"]


@pytest.fixture(name="run")
def faked_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str]]]:
    """Run stages that leave what their commands would; one of them may fail."""

    def run(*words: str, failing: str = "", code: int = 3, stopping: str = "") -> tuple[int, list[str]]:
        called: list[str] = []
        pipeline = read_pipeline([f"run.root={tmp_path}", "run.name=p", *words])

        def call(_: Stops, command: list[str]) -> int:
            (stage,) = [one for one in pipeline.stages if pipeline.command(one) == command]
            called.append(stage.name)
            if stage.name != failing:
                leave(pipeline.output(stage), command)
            if stage.name == stopping:
                os.kill(os.getpid(), signal.SIGTERM)
            return code if stage.name == failing else 0

        monkeypatch.setattr(Stops, "call", call)
        return run_stages(pipeline, tell=lambda _: None), called

    return run


def leave(output: Path, command: list[str]) -> None:
    if command[0] == "train":
        (output / "checkpoints" / "step_00000001").mkdir(parents=True, exist_ok=True)
        write_status(output, Status("FINISHED", 0))
    elif command[0] == "evaluate":
        keep_scores(output, step=1, tokens=1, scores={"answers/all": {"score": 0.5}})
    else:
        output.mkdir()  # an export takes a new folder alone
        (output / "config.json").write_text("{}")


def read(tmp_path: Path) -> CommandPipeline:
    return read_pipeline([f"run.root={tmp_path}", "run.name=p"])


def test_all_stages_run_once_and_again_only_what_is_missing(run, tmp_path: Path) -> None:
    assert run() == (0, NAMES)
    assert run() == (0, [])
    assert done_stages(read(tmp_path))["talker_answers"].scores["answers/all"]["score"] == 0.5
    by_hand = {"answers/all": {"score": 1.0}, "core/mean": {"score": 0.2}}
    keep_scores(tmp_path / "p" / "talker", step=1, tokens=1, scores=by_hand)
    assert run("pipeline.stages.talker_answers.words=[--made,9]") == (0, ["talker_answers"])
    pipeline = read_pipeline([f"run.root={tmp_path}", "run.name=p", "pipeline.stages.talker_answers.words=[--made,9]"])
    own = done_stages(pipeline)["talker_answers"].scores
    assert {name: one["score"] for name, one in own.items()} == {"answers/all": 0.5}, "a score by hand is no stage's"
    assert run() == (0, ["talker_answers"])
    (tmp_path / "p" / "exported" / "config.json").unlink()
    assert run() == (0, ["exported"])


def test_a_stage_that_fails_ends_it_and_the_same_command_goes_on(run) -> None:
    assert run(failing="talker") == (3, NAMES[:4])
    assert run() == (0, NAMES[3:])


def test_stages_behind_one_that_ran_run_again_and_the_older_run_stands_aside(run, tmp_path: Path) -> None:
    run()
    assert run("talker.seed=7") == (0, NAMES[3:])
    assert (tmp_path / "p" / "talker.before-1" / "checkpoints").is_dir()
    shutil.rmtree(tmp_path / "p" / "base")
    assert run("talker.seed=7", failing="base_text") == (3, NAMES[:2])
    assert run("talker.seed=7") == (0, NAMES[1:]), "a stop does not hide that the base is another"
    assert (tmp_path / "p" / "talker.before-2").is_dir()


def test_a_refused_command_leaves_the_run_as_it_was_and_an_unfinished_one_goes_on(run, tmp_path: Path, capsys) -> None:
    run()
    assert run("talker.seed=x", failing="talker", code=2)[0] == 2
    assert "talker is as it was." in capsys.readouterr().err
    assert run() == (0, [])
    write_status(tmp_path / "p" / "talker", Status("KILLED", 137))
    assert run("talker.seed=7") == (0, NAMES[3:])
    assert not (tmp_path / "p" / "talker.before-1").exists()


def test_a_preflight_comes_first_is_cleared_away_and_comes_once(tmp_path: Path, monkeypatch) -> None:
    pipeline, called, code = read_pipeline([f"run.root={tmp_path}", "pipeline.preflight_steps=2"]), list[str](), [3]
    short = pipeline.preflight()

    def call(_: Stops, command: list[str]) -> int:
        (stage,) = [one for one in short.stages if short.command(one) == command]
        called.append(stage.name)
        leave(short.output(stage), command)
        return code[0]

    monkeypatch.setattr(Stops, "call", call)
    told: list[str] = []
    assert run_preflight(pipeline, tell=told.append) == 3, "it ends with the first stage that cannot be"
    assert (short.folder / "base").exists()
    code[0] = 0
    assert run_preflight(pipeline, tell=told.append) == 0
    assert called == ["base", *NAMES]
    assert not short.folder.exists()
    assert run_preflight(pipeline, tell=told.append) == 0
    assert len(called) == 1 + len(NAMES)
    assert told[0] == "preflight: every stage once, trainings for 2 steps"
    assert read_pipeline([]).preflight_steps == 0


@pytest.mark.faults
def test_a_killed_pipeline_takes_its_stage_along() -> None:
    child = f"{module.CHILD.partition('; from')[0]}; import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    parent = f"from lmtrain.run.pipelines import run; run.CHILD = {child!r}; run.Stops().call([])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        stage = Path(f"/proc/{int(process.stdout.readline())}")
        assert stage.exists()
        process.kill()
    poll(lambda: not stage.exists() or "\nState:\tZ" in (stage / "status").read_text(), seconds=10)


def test_a_stop_too_late_for_a_stage_ends_the_pipeline_before_the_next(run, tmp_path: Path) -> None:
    assert run(stopping="talker") == (143, NAMES[:4])
    assert run() == (0, NAMES[4:])
    (tmp_path / "p" / "exported" / "config.json").unlink()
    assert run(stopping="exported") == (0, ["exported"]), "nothing is left to stop"


def test_a_stop_is_passed_on_to_the_command_that_runs() -> None:
    stops = Stops()
    with handling(stops.hear):
        stops.process = subprocess.Popen(["sleep", "60"])
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stops.process.wait() == -signal.SIGUSR1
    assert stops.number == signal.SIGUSR1
