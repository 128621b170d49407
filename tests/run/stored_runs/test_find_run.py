"""The run or checkpoint that a path means, and who owns a folder."""

import json
import re
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.stored_runs.find_run import (
    CheckpointSource,
    find_job,
    find_source,
    require_own_folder,
)
from lmtrain.storage.hashed_folder import write_atomically


def run_folder(path: Path, *steps: int) -> Path:
    for attempt in (1, 2, 10):
        folder = path / "attempts" / str(attempt)
        folder.mkdir(parents=True)
        job = {"config": {"model": {"attempt": attempt}}, "overrides": [], "name": "a", "root": str(path.parent)}
        (folder / "job.json").write_text(json.dumps(job))
    for step in steps:
        write_atomically(
            path / "checkpoints" / f"step_{step:08d}",
            facts={"step": step, "tokens": 10 * step, "identity": {}},
            write=lambda folder: (folder / "state.pt").write_text("x"),
        )
    return path


def found(path: Path) -> CheckpointSource:
    source = find_source(path, key="SOURCE")
    assert isinstance(source, CheckpointSource)
    return source


def test_a_run_means_its_newest_checkpoint_and_its_newest_accepted_attempt(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a", 5, 20)
    source = found(run)
    assert (source.checkpoint.step, source.run, source.job.config["model"]) == (20, run, {"attempt": 10})
    (run / "run.json").write_text(json.dumps({"accepted_attempt": "2"}))
    assert found(run).job.config["model"] == {"attempt": 2}
    source = found(run / "checkpoints" / "step_00000005")
    assert (source.checkpoint.step, source.run) == (5, run)


def test_a_damaged_checkpoint_is_replaced_by_an_older_one_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(tmp_path / "a", 5, 20)
    (run / "checkpoints" / "step_00000020" / "state.pt").write_text("y")
    assert found(run).checkpoint.step == 5
    assert "step_00000020 is damaged" in capsys.readouterr().err
    with pytest.raises(EnvironmentProblem, match=rf"SOURCE=.*step_00000020 is damaged: .*{run}"):
        find_source(run / "checkpoints/step_00000020", key="SOURCE")
    (run / "checkpoints" / "step_00000005" / "state.pt").write_text("y")
    with pytest.raises(EnvironmentProblem, match="is damaged"):
        find_source(run, key="SOURCE")


def test_a_path_that_is_not_a_run_is_refused_with_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "runs" / "notes")
    (tmp_path / "runs" / "nots-data").mkdir()  # nearer, but not a run
    for path in ("notes", "nots", "runs/nots"):
        with pytest.raises(ConfigurationError, match=rf"RUN={path} must be a run.*'runs/notes'\?$"):
            find_source(Path(path), key="RUN")
    with pytest.raises(ConfigurationError, match=r"RUN=zzz must be a run, a checkpoint or an imported folder\.$"):
        find_source(Path("zzz"), key="RUN")
    with pytest.raises(ConfigurationError, match=r"`lmtrain import hf meta/Ll-3\.2 runs/base"):
        find_source(Path("meta/Ll-3.2"), key="init_from")
    with pytest.raises(ConfigurationError, match=r"RUN=runs/notes has no checkpoint yet; .*run\.name=notes"):
        find_source(Path("runs/notes"), key="RUN")


def test_folders_of_imports_and_of_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base" / "weights").mkdir(parents=True)
    (tmp_path / "base" / "import.json").touch()
    assert find_source(tmp_path / "base", key="RUN") == tmp_path / "base"
    with pytest.raises(ConfigurationError, match=r"must be a run, a checkpoint\.$"):
        find_job(tmp_path / "base", key="RUN")
    for name, file, command in (("llama 3", "config.json", "hf"), ("lora", "adapter_config.json", "peft")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / file).write_text("{}")
        (folder / "model.safetensors").touch()
        with pytest.raises(ConfigurationError, match=rf"`lmtrain import {command} .*{name}'? runs/base.*init_from="):
            find_source(folder, key="init_from")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a/checkpoints/step_00000030", "does not exist .*keep_last"),
        ("a/checkpoints/step_00000005.txt", "is not a checkpoint"),
    ],
)
def test_a_missing_checkpoint_is_refused_with_those_kept(tmp_path: Path, path: str, why: str) -> None:
    run = run_folder(tmp_path / "a", 5, 20)
    (run / "checkpoints/step_00000005.txt").touch()
    message = f"^init_from={re.escape(str(tmp_path / path))} {why}.*; {run} has step_00000005, step_00000020\\.$"
    with pytest.raises(ConfigurationError, match=message):
        find_source(tmp_path / path, key="init_from")


@pytest.mark.parametrize(
    ("there", "name", "message"),
    [
        ("pp/pipeline.json", "pp", r"pp is a pipeline's folder.*run\.name"),
        ("pp/base/status.json", "pp", r"pp holds other runs, as .*pp/base.*run\.name"),
        ("cat/sweep.json", "cat/mine", r"cat is a sweep's folder.*run\.name"),
        ("notes/run.json", "notes/a/b", r"notes is a run's folder.*run\.name"),
        ("base/import.json", "base", r"base is an import's folder.*run\.name"),
    ],
)
def test_a_run_has_its_folder_to_itself(tmp_path: Path, there: str, name: str, message: str) -> None:
    file = tmp_path / there
    (file.parent / "weights").mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(ConfigurationError, match=message):
        require_own_folder(tmp_path / name, root=tmp_path)
    require_own_folder(tmp_path / "pp" / "other", root=tmp_path)
    require_own_folder(tmp_path / "notes", root=tmp_path)
