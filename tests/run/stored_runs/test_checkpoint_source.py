import json
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.stored_runs.checkpoint_source import CheckpointSource, find_job, find_source
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


def test_a_run_means_its_newest_checkpoint_and_its_newest_attempt(tmp_path: Path) -> None:
    source = find_source(run_folder(tmp_path / "a", 5, 20), key="SOURCE")
    assert isinstance(source, CheckpointSource)
    assert (source.checkpoint.step, source.run) == (20, tmp_path / "a")
    assert source.job.config["model"] == {"attempt": 10}


def test_an_attempt_that_was_killed_before_it_was_accepted_is_not_the_runs(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a", 5)
    (run / "run.json").write_text(json.dumps({"accepted_attempt": "2"}))
    source = find_source(run, key="SOURCE")
    assert isinstance(source, CheckpointSource)
    assert source.job.config["model"] == {"attempt": 2}


def test_a_checkpoint_means_itself(tmp_path: Path) -> None:
    source = find_source(run_folder(tmp_path / "a", 5, 20) / "checkpoints" / "step_00000005", key="SOURCE")
    assert isinstance(source, CheckpointSource)
    assert (source.checkpoint.step, source.run) == (5, tmp_path / "a")


def test_a_damaged_newest_checkpoint_is_passed_over_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "a", 5, 20)
    (run / "checkpoints" / "step_00000020" / "state.pt").write_text("y")
    source = find_source(run, key="SOURCE")
    assert isinstance(source, CheckpointSource)
    assert source.checkpoint.step == 5
    assert "step_00000020 is damaged" in capsys.readouterr().err


def test_damage_everywhere_is_told(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a", 5)
    (run / "checkpoints" / "step_00000005" / "state.pt").write_text("y")
    with pytest.raises(EnvironmentProblem, match="is damaged"):
        find_source(run, key="SOURCE")


def test_what_is_none_of_the_three_is_refused_by_the_name_it_was_typed_under(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"init_from=.*nowhere is neither a run, nor a checkpoint"):
        find_source(tmp_path / "nowhere", key="init_from")
    with pytest.raises(ConfigurationError, match="has no checkpoint yet"):
        find_source(run_folder(tmp_path / "a"), key="SOURCE")


def test_the_name_of_a_run_leads_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "runs" / "notes")
    (tmp_path / "runs" / "nots-data").mkdir()  # nearer, and refused too
    for typed in ("notes", "nots", "runs/nots"):
        with pytest.raises(ConfigurationError, match=rf"RUN={typed} is .*; nearest valid: runs/notes\.$"):
            find_source(Path(typed), key="RUN")
    with pytest.raises(ConfigurationError, match=r"RUN=zzz is neither .*; nearest valid: runs/NAME\.$"):
        find_source(Path("zzz"), key="RUN")
    (tmp_path / "runs/notes/status.json").touch()
    with pytest.raises(ConfigurationError, match=r"RUN=zzz is neither .*; nearest valid: runs/NAME\.$"):
        find_source(Path("zzz"), key="RUN")  # notes has no checkpoint
    (tmp_path / "runs/notes/checkpoints/step_00000001").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"RUN=zzz is neither .*; nearest valid: runs/notes\.$"):
        find_source(Path("zzz"), key="RUN")
    (tmp_path / "runs/notes/status.json").unlink()
    with pytest.raises(ConfigurationError, match=r"of a name on the hub: `hf download meta/Ll-3\.2 .*import hf base"):
        find_source(Path("meta/Ll-3.2"), key="init_from")
    (tmp_path / "zzz").mkdir()  # no run, and not the nearest one to itself
    with pytest.raises(ConfigurationError, match=r"zzz is neither .*; nearest valid: runs/NAME\.$"):
        find_source(tmp_path / "zzz", key="init_from")


def test_an_imported_folder_is_refused_as_such_where_only_runs_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # without runs/
    for name in ("base", "base2"):
        (tmp_path / name / "weights").mkdir(parents=True)
        (tmp_path / name / "import.json").touch()
    assert find_source(tmp_path / "base", key="RUN") == tmp_path / "base"
    with pytest.raises(ConfigurationError, match=r"base is an imported folder, and only a run .*: runs/NAME\.$"):
        find_job(tmp_path / "base", key="RUN")


def test_another_program_s_folder_is_to_be_imported_first(tmp_path: Path) -> None:
    for name, file, command in (("llama 3", "config.json", "hf"), ("lora", "adapter_config.json", "peft")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / file).write_text("{}")
        with pytest.raises(ConfigurationError, match=rf"{name} is neither a run"):
            find_source(folder, key="init_from")  # no weights in it
        (folder / "model.safetensors").touch()
        with pytest.raises(
            ConfigurationError, match=rf"first: `lmtrain import {command} .*{name}'? runs/base.*init_from=runs/base\.$"
        ):
            find_source(folder, key="init_from")


def test_a_damaged_checkpoint_named_by_its_path_is_told_as_damaged(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a", 5, 20)
    (run / "checkpoints/step_00000020/manifest.json").unlink()
    with pytest.raises(EnvironmentProblem, match=rf"SOURCE=.*step_00000020 is damaged: .*; nearest valid: {run}\."):
        find_source(run / "checkpoints/step_00000020", key="SOURCE")
