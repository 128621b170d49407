"""Options of a stranger's folder: bounded, and unable to run code or to send things."""

import os
from pathlib import Path
from typing import Any

import pytest

from lmtrain.cli.main import serve
from lmtrain.errors import EXIT_CONFIGURATION, ConfigurationError
from lmtrain.run.compose.untrusted_options import (
    IN_A_WORD,
    refuse_untyped,
    require_bounded_references,
)
from tests.storage.test_untrusted_files import LAUGHS

DOUBLING = {f"a{i}": f"${{a{i + 1}}}${{a{i + 1}}}" for i in range(40)} | {"a40": "xx"}
NODES = {f"a{i}": {"x": f"${{a{i + 1}}}", "y": f"${{a{i + 1}}}"} for i in range(40)} | {"a40": "xx"}


@pytest.mark.parametrize(
    "config",
    [
        DOUBLING,
        NODES,
        {"z": {"a": "${.b}${.b}", **{k: v.replace("${a", "${.a") for k, v in DOUBLING.items()}, "b": "${.a0}"}},
        {"a": "${b}", "b": "${a}"},
        {"a": "${.a}"},
        {f"a{i}": f"${{a{i + 1}}}" for i in range(100)},
    ],
)
def test_references_without_bound_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"written out|circle"):
        require_bounded_references(config)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (LAUGHS, "cannot be an option: it has more than"),
        ("z: " + "[" * 1500, "is not valid YAML"),
        ("z: " + "[" * 1500 + "]" * 1500, "it is nested"),
        ("z:\n" + "".join(f"  {name}: {text.replace('{a', '{z.a')}\n" for name, text in DOUBLING.items()), "too large"),
        ("z: [", "not valid YAML"),
    ],
)
def test_an_option_that_is_a_bomb_is_told_in_a_line(
    text: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    words = ["--config-dir", str(tmp_path), "experiment=mine", "data=synthetic"]
    assert serve("train", words, program="train.py") == EXIT_CONFIGURATION
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"# @package _global_\nz: \xff\n", "cannot be read: 'utf-8' codec can't decode byte 0xff"),
        (b"# @package _global_\nseed: " + b"7" * 6000, "cannot be read: Exceeds the limit (4300 digits)"),
        (None, "mine.yaml cannot be an option: it is a pipe, a socket or a device; correct or remove it."),
    ],
)
def test_an_option_that_cannot_be_read_is_named_with_the_reason(
    content: bytes | None, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    option = tmp_path / "experiment" / "mine.yaml"
    os.mkfifo(option) if content is None else option.write_bytes(content)
    words = ["--config-dir", str(tmp_path), "experiment=mine", "data=synthetic"]
    assert serve("plan", words, program="lmtrain") == EXIT_CONFIGURATION
    error = capsys.readouterr().err
    assert str(tmp_path) in error
    assert part in error
    assert error.count("\n") == 1


def test_a_word_nested_without_bound_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    word = f"model={'{a: ' * 3000}1{'}' * 3000}"
    assert serve("plan", [word], program="lmtrain plan") == EXIT_CONFIGURATION
    assert capsys.readouterr().err == "lmtrain: model: its value is nested more than 100 deep; write it flat.\n"


SLURM = "data_pipelines.engines.slurm.SlurmEngine"
ASIDE = "lmtrain.callbacks.evaluate_aside.EvaluateAside"
PUSH = "lmtrain.callbacks.push.Push"
MLFLOW = "lmtrain.tracking.mlflow.tracking.MlflowTracking"
RUN = "lmtrain.run.settings.RunSettings"


def test_a_line_of_shell_is_typed() -> None:
    engine = {"_target_": SLURM, "setup": "module load python"}
    refuse_untyped({"engine": engine, "data": {"folder": {"engine": engine}}}, ["+engine.setup=module load python"])
    refuse_untyped({"engine": {"_target_": SLURM, "setup": None, "sbatch": {}}}, [])
    with pytest.raises(ConfigurationError, match=r"^data\.folder\.engine\.setup=module load python cannot be set by"):
        refuse_untyped({"data": {"folder": {"engine": engine}}}, ["seed=1", "engine=slurm"])


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"engine": {"_target_": SLURM, "sbatch": {"export": "LD_PRELOAD=evil.so"}}}, "engine.sbatch.export"),
        ({"engine": {"_target_": "data_pipelines.engines.ray.RayEngine", "address": "ray://evil"}}, "engine.address"),
        ({"callbacks": {"x": {"_target_": ASIDE, "words": ["--allow-task-code"]}}}, "callbacks.x.words"),
        ({"callbacks": {"x": {"_target_": PUSH, "repository": "evil/sink"}}}, "callbacks.x.repository"),
        ({"sweep": {"_target_": "lmtrain.search.search_settings.SearchSettings", "slurm": {"slurm_setup": ["x"]}}},
         "sweep.slurm.slurm_setup"),
        ({"run": {"_target_": RUN, "cache": "/tmp/theirs"}}, "run.cache"),
        ({"logger": {"_target_": MLFLOW, "tracking_uri": "http://evil.example"}}, "logger.tracking_uri"),
    ],
)  # fmt: skip
def test_what_runs_code_or_sends_is_typed(config: dict[str, object], key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{key}=.* cannot be set by --config-dir"):
        refuse_untyped(config, ["callbacks=[default,x]", "engine=slurm", "experiment=mine"])
    refuse_untyped(config, [f"+{key}=x"])
    refuse_untyped(config, [f"+{key.rpartition('.')[0]}={{a: b}}"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://evil.example/more")
    if key == "logger.tracking_uri":
        refuse_untyped(config, [])


def test_a_secret_of_the_environment_comes_into_no_setting_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary_5f2a9c7d")
    config = {"source": {"paths": ["https://evil.example/canary_5f2a9c7d"]}}
    with pytest.raises(ConfigurationError, match=r"^source\.paths holds HF_TOKEN of this environment") as refusal:
        refuse_untyped(config, [])
    assert "canary" not in str(refusal.value)
    refuse_untyped(config, ["source.paths=[https://mine/${oc.env:HF_TOKEN}]"])


@pytest.mark.parametrize(
    "word",
    [
        "+callbacks.x={_target_:lmtrain.callbacks.evaluate_aside.EvaluateAside,words:[--core,x]}",
        "'++engine={sbatch: {export: x}}'",
        "++engine.sbatch.export=x",
        "sweep.slurm={slurm_setup:[x]}",
        "run.cache=theirs",
        "++run={cache: theirs}",
        "logger.tracking_uri=http://evil.example",
        "callbacks.push.repository=evil/sink",
        "source.paths=[https://evil.example/${oc.env:HF_TOKEN}]",
    ],
)
def test_no_word_of_a_pipelines_file_decides_them(word: str) -> None:
    assert IN_A_WORD.search(word)


@pytest.mark.parametrize(
    "word", ["engine=slurm", "run.name=cache", "source.cache=x", "--answers=x", "source.name=a/words"]
)
def test_other_words_of_a_pipelines_file_are_taken(word: str) -> None:
    assert not IN_A_WORD.search(word)
