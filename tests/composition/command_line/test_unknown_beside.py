from lmtrain.composition.command_line.compose import compose_config
from lmtrain.composition.command_line.unknown_beside import is_known_head, unknown_beside
from lmtrain.composition.command_line.unknown_words import leaf_keys


def test_words_known_nowhere_are_told_but_for_those_answered() -> None:
    words = ["--foo", "3", "bar.x=1", "lr=2", "--lr", "2", "-m", "--resolve", "seed=1", "hydra.mode=RUN", "~spikes"]
    told = ["--foo: there is no such flag", "bar.x=1: there is no key bar.x"]
    assert unknown_beside(words, ["lr=2", "--lr 2"]) == told
    assert unknown_beside([*words, "--config-dir", "mine"], []) == []


def test_every_key_of_a_config_and_of_a_pipeline_is_known() -> None:
    assert not [key for key in leaf_keys(compose_config([])) if not is_known_head(key)]
    assert is_known_head("stages.base.words")
    assert not is_known_head("exp_manager.create_wandb_logger")
