import json
from pathlib import Path

import pytest

from lmtrain.run.run_config import read_config
from lmtrain.run.stored_runs.job import Job, default_name, job_of_rank, load_job
from tests.configs import config_of, config_with


def test_a_run_is_named_by_its_overrides_in_any_order_without_those_of_execution() -> None:
    assert default_name("llama", ["a=1", "b=2"]) == default_name("llama", ["b=2", "a=1"])
    assert default_name("llama", ["a=1"]) != default_name("llama", ["a=2"])
    assert default_name("llama", ["trainer.devices=2", "resume=must", "run.log_every_steps=1"]) == "llama"


def test_a_job_survives_saving(tmp_path: Path) -> None:
    config = config_with(allowed=("mine.",))
    job = Job(config=config, overrides=["seed=1"], name="a", root="runs", sweep="s")
    job.save(tmp_path / "job.json")
    assert job_of_rank(tmp_path / "job.json") == job
    assert load_job(tmp_path / "job.json").config == config.values


SECRET = ("logger=mlflow", "logger.tracking_uri='http://me:canary-1@h'", "init_from=x-canary-2-long")


def test_a_kept_job_holds_no_secret_and_its_rank_gets_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-2-long")
    job = Job(config=config_of(*SECRET), overrides=["logger.tracking_uri=http://me:canary-1@h"], name="a", root="runs")
    job.save(tmp_path / "job.json")
    assert "canary-" not in (tmp_path / "job.json").read_text()
    handed_over = job.handed_over()
    for name, value in handed_over.items():
        monkeypatch.setenv(name, value)
    assert job_of_rank(tmp_path / "job.json") == job


def test_a_run_of_0_1_has_its_parts_where_they_are_now(tmp_path: Path) -> None:
    logger, profiler = "lmtrain.tracking.mlflow_tracking.MlflowTracking", "lmtrain.training.profiling.off.no_profiler"
    config = {
        "logger": {"_target_": logger},
        "parts": [{"_target_": profiler}],
        "model": {"_target_": "lmtrain.models.x.Y"},
    }
    (tmp_path / "job.json").write_text(json.dumps({"config": config, "overrides": [], "name": "a", "root": "runs"}))
    now = load_job(tmp_path / "job.json").config
    assert now["logger"]["_target_"] == "lmtrain.tracking.mlflow.tracking.MlflowTracking"
    assert now["parts"][0]["_target_"] == "lmtrain.training.profilers.no_profiler"
    assert now["model"] == config["model"]


@pytest.mark.parametrize("option", ["fsdp", "hsdp", "fsdp_tensor", "tensor", "context", "pipeline"])
def test_a_strategy_of_0_1_is_the_shorthand_that_it_is_now(option: str, tmp_path: Path) -> None:
    now = config_of(f"strategy={option}")
    old = {name: value for name, value in now.strategy.values.items() if name != "option"}
    old["_target_"] = f"lmtrain.parallel.{option}.{option}"
    job = {"config": {**now.values, "strategy": old}, "overrides": [], "name": "a", "root": "runs"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    found = read_config(load_job(tmp_path / "job.json").config)
    assert found.values == now.values
    assert found.strategy.word == option
    assert found.spread == now.spread
