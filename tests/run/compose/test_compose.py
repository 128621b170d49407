from pathlib import Path

import pytest
from hydra._internal.hydra import Hydra

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import compose_config, for_each_config


def refusal(*words: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        for_each_config(lambda config, choices: None, parse_arguments(words), config_name="train")
    return str(refused.value)


def test_an_unknown_key_names_the_nearest_and_its_neighbours() -> None:
    message = refusal("optimizer.lrr=1")
    assert message.startswith("optimizer.lrr=1: there is no key optimizer.lrr; optimizer has ")
    assert "Did you mean 'optimizer.lr=1'?" in message


def test_an_unknown_option_names_the_nearest_and_the_way_to_all() -> None:
    message = refusal("model=lama_tiny")
    assert message.startswith(
        "model=lama_tiny: there is no such option. Did you mean 'model=llama_tiny'? `--help model` "
    )
    assert "gpt2_124m" not in message
    assert refusal("callbacks=[default,early_stoping]").startswith(
        "callbacks=early_stoping: there is no such option. Did you mean 'early_stopping'? `--help callbacks` lists all "
    )


def test_an_unknown_group_names_the_nearest() -> None:
    assert "Did you mean 'model=llama_tiny'?" in refusal("modle=llama_tiny")


def test_a_malformed_override_is_quoted() -> None:
    assert "seed=[1" in refusal("seed=[1")


def test_a_composed_config_is_plain_and_resolved() -> None:
    config = compose_config(["model.width=64"])
    assert config["model"]["width"] == 64
    assert config["model"]["max_context_tokens"] == config["batch"]["context_tokens"]
    assert "hydra" not in config


def test_a_sweep_composes_each_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seeds: list[int] = []
    arguments = parse_arguments(["-m", "seed=1,2"])
    for_each_config(lambda config, choices: seeds.append(config["seed"]), arguments, config_name="train")
    assert seeds == [1, 2]


@pytest.mark.parametrize("sweep", [[], ["-m", "seed=1,2"]])
def test_a_setting_that_the_options_file_does_not_name_is_added_to_it(sweep: list[str]) -> None:
    found: list[object] = []
    words = [*sweep, "model=gpt2_124m", "model.biases=false", "model.tie_embeddings=false"]
    for_each_config(
        lambda config, choices: found.append((config["model"]["biases"], config["model"]["tie_embeddings"])),
        parse_arguments(words),
        config_name="train",
    )
    assert found == [(False, False)] * (2 if sweep else 1)


@pytest.mark.parametrize("words", [["budget.tokens=500K", "--cfg", "job"], ["--cfg", "job", "budget.tokens=500K"]])
def test_a_flag_may_stand_before_or_after_a_budget(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for_each_config(lambda config, choices: None, parse_arguments(words), config_name="train")
    assert "\n  steps: null\n  tokens: 500K\n" in capsys.readouterr().out


def test_flags_that_exclude_one_another_are_refused() -> None:
    assert "Only one of" in refusal("-m", "seed=1,2", "--cfg", "job")


def test_several_values_without_a_sweep_are_refused_with_both_ways_out() -> None:
    message = refusal("seed=1,2")
    assert message == "seed=1,2 has several values; choose one, as in seed=1, or add -m for a run of each."


def test_one_config_is_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[object] = []
    original = Hydra.compose_config
    monkeypatch.setattr(Hydra, "compose_config", lambda *args, **kw: composed.append(kw) or original(*args, **kw))
    for_each_config(lambda config, choices: None, parse_arguments(["seed=1"]), config_name="train")
    assert len(composed) == 1


def test_a_config_may_make_itself_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seeds: list[tuple[int, bool]] = []
    for_each_config(
        lambda config, choices: seeds.append((config["seed"], choices.is_trial)),
        parse_arguments(["hydra.mode=MULTIRUN", "seed=1,2"]),
        config_name="train",
    )
    assert seeds == [(1, True), (2, True)]
