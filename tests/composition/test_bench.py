import json
from pathlib import Path

import pytest

from lmtrain.composition.bench import bench, read_words
from lmtrain.errors import ConfigurationError
from tests import tiny

SMALL = [*tiny.MODEL, *tiny.DATA, *tiny.BATCH, "compile=none", "precision=fp32", "trainer.accelerator=cpu"]


def test_the_verb_s_own_words_are_taken_out():
    assert read_words(["--json", "model=llama_tiny", "--seconds=2.5"]) == (True, 2.5, ["model=llama_tiny"])
    assert read_words([])[1] == 8.0
    for word in ("--seconds=0", "--seconds=soon", "--seconds"):
        with pytest.raises(ConfigurationError, match="no number of seconds above 0; nearest valid: --seconds=8"):
            read_words([word])


def test_a_config_is_measured_and_leaves_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    told = ["callbacks.validation.num_passes=2", "budget.steps=3", "run.name=mine", "cluster.peak_flops=1e15"]
    assert bench([*SMALL, *told, "--json", "--seconds=0.1"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["tokens_per_second"] > 0
    assert said["mfu"]["palm"] > said["mfu"]["causal"] > 0
    assert set(said["shares"]) == {"data", "forward", "backward", "optimizer", "host"}
    assert said["bottleneck"]
    assert not Path("runs").exists()


def test_several_processes_are_refused_with_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"trainer.devices=2: .* use trainer.devices=1"):
        bench([*SMALL, "trainer.devices=2"])


def test_a_wrong_key_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="num_layerz"):
        bench([*SMALL, "model.num_layerz=3"])
