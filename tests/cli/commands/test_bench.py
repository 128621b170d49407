import json
import math
from pathlib import Path

import pytest

from lmtrain.cli.commands.bench import bench, configs, read_words
from lmtrain.errors import ConfigurationError
from tests import tiny

SMALL = [*tiny.MODEL, *tiny.DATA, *tiny.BATCH, "precision=fp32", "trainer.accelerator=cpu", "cluster.peak_flops=1e15"]


def test_the_verb_s_own_words_are_taken_out():
    asked = read_words(["--json", "model=llama_tiny", "--seconds=2.5", "--try"])
    assert (asked.as_json, asked.tries_all, asked.seconds, asked.overrides) == (True, True, 2.5, ["model=llama_tiny"])
    assert read_words([]).seconds == 8.0
    for word in ("--seconds=0", "--seconds=soon", "--seconds"):
        with pytest.raises(ConfigurationError, match="no number of seconds above 0; nearest valid: --seconds=8"):
            read_words([word])


def test_help_is_the_verb_s_own_page(capsys) -> None:
    assert bench(["--help"]) == 0
    assert capsys.readouterr().out.startswith("lmtrain bench: time a training config's step")


def test_a_config_is_measured_with_what_may_help_and_leaves_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lmtrain.cli.commands.bench.WHOLE_SECONDS", math.inf)  # a busy machine would try fewer
    told = [
        "callbacks.validation.num_passes=2",
        "budget.steps=3",
        "run.log_every_steps=1",
        "batch.micro_batch_sequences=4",
    ]
    assert bench([*SMALL, "compile=none", "recompute=every_block", *told, "--json", "--seconds=0.2"]) == 0
    printed = capsys.readouterr()
    said = json.loads(printed.out)
    assert said["tokens_per_second"] > 0
    assert said["mfu"]["palm"] > said["mfu"]["causal"] > 0
    assert said["of_matmul_rate"] > 0
    assert said["host_syncs"] >= 1, "metrics are read after every step"
    assert said["seconds"]["first_step"] > 0
    assert set(said["shares"]) == {"data", "forward", "backward", "optimizer", "host"}
    assert said["bottleneck"]
    assert "trying recompute=none" in printed.err
    assert "trying batch.micro_batch_sequences=8" in printed.err
    assert all(each["saved"] is not None for each in said["advice"] if each["change"] != ["compile=auto"])
    assert not Path("runs").exists()


def test_what_only_writes_or_prints_is_left_out_also_where_it_is_not_there() -> None:
    (config,) = configs(SMALL)
    assert not {"validation", "checkpoint", "progress", "graceful_stop"} & config.config.callbacks.keys()
    (config,) = configs([*SMALL, "callbacks=[step_log,token_budget]"])
    assert list(config.config.callbacks) == ["step_log", "token_budget"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("trainer.devices=2", r"trainer.devices=2: .* use trainer.devices=1"),
        ("compile.cuda_graphs=true", "one is launched as one; nearest valid: compile.cuda_graphs=false"),
        ("model.num_layerz=3", "num_layerz"),
        ("optimizer.lr=-1", "optimizer.lr"),
        ("run.log_every_steps=0", "run.log_every_steps=0 is below 1"),
    ],
)
def test_what_is_wrong_is_refused_before_data_is_looked_for(tmp_path, monkeypatch, word: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=said):
        bench([*SMALL, "compile=none", word])
    assert not Path("data").exists()


def test_each_config_of_a_sweep_is_told_by_what_it_alone_has() -> None:
    found = configs([*SMALL, "-m", "optimizer.lr=0.1,0.2"])
    assert [config.choices.swept for config in found] == [["optimizer.lr=0.1"], ["optimizer.lr=0.2"]]
    assert [config.choices.title for config in configs(SMALL)] == [found[0].choices.options["model"]]
