"""Folders, checkpoints and configs from someone else are data: none of them runs code."""

import json
import os
from pathlib import Path

import pytest

from lmtrain.cli.main import serve
from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DATA, EXIT_ENVIRONMENT
from lmtrain.storage.hashed_folder import write_atomically
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.tiny import BATCH, DATA, MODEL, QUIET

TOUCH = "{_target_: subprocess.call, args: [touch, TOUCHED]}"


@pytest.fixture
def touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to an empty folder and return a file there that only an attack makes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "touched"


def _option(folder: Path, touched: Path, *, name: str = "mine") -> None:
    """Write an experiment whose Hydra callback touches a file, in the places that Hydra looks at."""
    (folder / "experiment").mkdir(parents=True)
    callback = TOUCH.replace("TOUCHED", str(touched))
    lines = ["# @package _global_", "hydra:", "  callbacks:", f"    attack: {callback}"]
    (folder / "experiment" / f"{name}.yaml").write_text("\n".join(lines))


@pytest.mark.parametrize("verb", ["plan", "doctor"])
def test_an_imported_folder_is_no_config(verb: str, touched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = touched.parent / "in"
    _option(folder, touched, name="imported")
    (folder / "weights").mkdir()
    (folder / "import.json").write_text(json.dumps({"settings": {"_target_": "subprocess.call", "args": "true"}}))
    assert serve(verb, [f"init_from={folder}"], program="lmtrain") == EXIT_CONFIGURATION
    assert "model._target_=subprocess.call is not allowed" in capsys.readouterr().err
    assert not touched.exists()


@pytest.mark.parametrize("sweep", [[], ["-m", "seed=1,2"]])
def test_a_folder_of_options_calls_no_hydra_callback(
    sweep: list[str], touched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _option(touched.parent / "conf", touched)
    words = ["--config-dir", str(touched.parent / "conf"), "experiment=mine", *sweep]
    assert serve("train", words, program="train.py") == EXIT_CONFIGURATION
    assert "callbacks.attack" in capsys.readouterr().err
    assert not touched.exists()


@pytest.mark.parametrize("flag", [["-m", "seed=1,2"], []])
@pytest.mark.parametrize(
    "key", ["hydra.callbacks.a", "hydra.job_logging.handlers.a", "hydra.launcher", "hydra.sweeper"]
)
def test_hydras_own_settings_are_refused(
    key: str, flag: list[str], touched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*flag, f"+{key}={{_target_:subprocess.call,args:[touch,{touched}]}}"]
    assert serve("train", words, program="train.py") == EXIT_CONFIGURATION
    assert f"{key} has no effect" in capsys.readouterr().err
    assert not touched.exists()


@pytest.mark.parametrize(
    ("node", "part"),
    [
        ("+callbacks.a={_target_:data_pipelines.processes._start,run:x}", "callbacks.a._target_=data_pipelines"),
        ("+callbacks.a={_target_:lmtrain.storage.hashed_folder.start_aside,aside:victim}", "is not allowed"),
        ("data.folder._target_=lmtrain.storage.hashed_folder.start_aside", "data.folder._target_"),
        ("+model.rope_scaling={_target_:lmtrain.models.attention.sdpa.SDPA}", "is of another kind"),
        ("+model.rope_scaling={_target_:lmtrain.storage.hashed_folder.start_aside,aside:victim}", "another kind"),
        ("+batch.context_tokens={_target_:lmtrain.storage.hashed_folder.start_aside}", "batch.context_tokens"),
        ("model._target_=lmtrain.models.llama.nn.Module", "model._target_"),
        ("model._target_=lmtrain.models.base.shape_of", "is of another kind: model takes LanguageModel"),
        ("model._target_=lmtrain.models._x.Y", "is private"),
    ],
)
def test_a_slot_takes_its_own_kind_alone(
    node: str, part: str, touched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (touched.parent / "victim").mkdir()
    words = [*MODEL, *DATA, *BATCH, *QUIET, "budget.steps=1", node]
    assert serve("train", words, program="train.py") == EXIT_CONFIGURATION
    assert part in capsys.readouterr().err
    assert (touched.parent / "victim").is_dir()


@pytest.mark.parametrize("command", [["generate"], ["export", "hf"]])
def test_a_run_folder_names_no_code_of_its_own(
    command: list[str], touched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = touched.parent / "run"
    attack = {"_target_": "subprocess.call", "args": ["touch", str(touched)]}
    job = {"config": {"model": attack, "batch": attack}, "overrides": [], "name": "a", "root": str(touched.parent)}
    (run / "attempts" / "1").mkdir(parents=True)
    (run / "attempts/1/job.json").write_text(json.dumps({**job, "allowed_targets": ["subprocess."]}))
    _empty_checkpoint(run)
    words = [*command[1:], str(run), *(["out"] if command[0] == "export" else [])]
    assert serve(command[0], words, program="lmtrain") == EXIT_CONFIGURATION
    assert "_target_=subprocess.call is not allowed" in capsys.readouterr().err
    assert not touched.exists()


@pytest.mark.parametrize(
    "flag",
    ["[--allow-target, subprocess.]", "[--allow-target=subprocess.]", "[--al, subprocess.]", "[--allow-task-code]"],
)
def test_a_pipelines_file_allows_no_target(flag: str, touched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = touched.parent / "conf" / "pipeline"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(f"stages:\n  a:\n    verb: train\n    words: {flag}\n")
    assert serve("pipeline", ["--config-dir", "conf", "pipeline=mine"], program="lmtrain") == EXIT_CONFIGURATION
    assert "pipeline.stages.a.words: a file must not allow targets" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word",
    [
        "engine.setup=touch touched",
        "'++engine={setup: touch touched}'",
        "data.folder.engine.setup=x",
    ],
)
def test_a_pipelines_file_runs_no_shell(word: str, touched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = touched.parent / "conf" / "pipeline"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(f"stages:\n  a:\n    verb: train\n    words: [{word}]\n")
    assert serve("pipeline", ["--config-dir", "conf", "pipeline=mine"], program="lmtrain") == EXIT_CONFIGURATION
    assert "a file must not run code or send data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("node", "part"),
    [
        ("{partition: p, setup: touch touched}", "engine.setup=touch touched cannot be set by --config-dir"),
        ('{partition: "p\\ntouch touched"}', "must have settings of one line"),
        ('{partition: p, sbatch: {comment: "x\\ntouch touched"}}', "engine.sbatch.comment="),
    ],
)
def test_a_file_writes_no_line_of_shell(
    node: str, part: str, touched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = touched.parent / "conf" / "experiment"
    folder.mkdir(parents=True)
    lines = ["# @package _global_", "defaults:", "  - override /engine: slurm", f"engine: {node}"]
    (folder / "mine.yaml").write_text("\n".join(lines))
    for choice in ("+experiment=mine", "experiment=mine"):  # added to a preparation, or a training's
        words = ["--config-dir", "conf", choice, "source=python_stdlib"]
        assert serve("prepare", words, program="lmtrain") == EXIT_CONFIGURATION
        assert part in capsys.readouterr().err


@pytest.mark.parametrize("word", ["LD_PRELOAD: evil.so", "PYTHONPATH: .", "NCCL_NET_PLUGIN: /tmp/evil.so"])
def test_a_file_sets_no_variable_that_loads_code(word: str, touched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = touched.parent / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(f"# @package _global_\ncluster:\n  environment: {{{word}}}\n")
    words = ["--config-dir", "conf", "experiment=mine", "data=synthetic"]
    assert serve("train", words, program="lmtrain") == EXIT_CONFIGURATION
    assert "must be a plain setting of a communication library" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "part"),
    [
        ("[]", "job.json is not the job of a run"),
        ('{"config": [1], "overrides": [], "name": "a", "root": ""}', "job.json is not the job of a run"),
        ('{"config": {"model": "x"}, "overrides": [], "name": "a", "root": ""}', "has no model"),
    ],
)
def test_a_damaged_run_folder_is_told_in_a_line(
    job: str, part: str, touched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = touched.parent / "run"
    (run / "attempts" / "1").mkdir(parents=True)
    (run / "attempts/1/job.json").write_text(job)
    (run / "events").mkdir()
    (run / "events/rank0.jsonl").write_text('[]\n{"a": 1}\n')
    (run / "samples.jsonl").write_text('{"a": 1}\nx')
    _empty_checkpoint(run)
    assert serve("generate", [str(run)], program="lmtrain") == EXIT_DATA
    assert part in capsys.readouterr().err
    (run / "status.json").write_text('{"status": "FINISHED"}')
    assert serve("show", [str(run)], program="lmtrain") == 0
    (run / "fork.json").write_text('{"step": []}')
    assert serve("show", [str(run)], program="lmtrain") == EXIT_DATA
    (run / "fork.json").unlink()
    (run / "metrics.jsonl").write_text('{"time": 1, "step": 1, "tokens": 1, "metrics": []}\n')
    assert serve("show", [str(run)], program="lmtrain") == EXIT_DATA
    assert "metrics.jsonl line 1 is not a point of a run log" in capsys.readouterr().err


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "events/rank0.jsonl", "events/rank0.beat", "samples.jsonl", "status.json"]
)
def test_a_pipe_in_a_run_folder_holds_nobody_up(name: str, touched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = touched.parent / "runs" / "run"
    (run / "attempts" / "1").mkdir(parents=True)
    (run / "attempts/1/job.json").write_text('{"config": {}, "overrides": [], "name": "a", "root": ""}')
    (run / "run.json").write_text('{"run": "x"}')
    (run / "events").mkdir()
    os.mkfifo(run / name)
    for verb in ("show", "ledger", "ls", "compare", "report"):
        code = serve(verb, [str(run)], program="lmtrain")
        assert code in (0, EXIT_CONFIGURATION, EXIT_ENVIRONMENT, EXIT_DATA), capsys.readouterr().err


def _empty_checkpoint(run: Path) -> None:
    """Write a whole checkpoint and a tokenizer, so that only the config is in the way."""
    write_atomically(
        run / "checkpoints" / "step_00000001",
        facts={"step": 1, "tokens": 1, "identity": {}},
        write=lambda folder: (folder / "state.pt").write_bytes(b""),
    )
    ByteLevelTokenizer(vocab_size=300).save(run / "tokenizer")
