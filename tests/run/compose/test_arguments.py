import re

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments


def test_a_budget_key_alone_replaces_the_default_budget() -> None:
    assert parse_arguments(["budget.steps=20"]).hydra == ["budget.steps=20", "budget=none"]


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (["callbacks.validation.every_steps=10"], ["callbacks.validation.num_passes=null"]),
        (["callbacks.validation.every_steps=null"], []),
        (["callbacks.validation.every_steps=10", "callbacks.validation.num_passes=4"], []),
    ],
)
def test_an_interval_of_validations_alone_replaces_their_number(words: list[str], added: list[str]) -> None:
    assert parse_arguments(words).added == added


def test_a_chosen_budget_option_is_kept() -> None:
    words = ["budget=tokens_per_parameter", "budget.steps=20"]
    assert parse_arguments(words).hydra == words


def test_devices_follow_an_outer_launcher() -> None:
    arguments = parse_arguments(["seed=1"], world=(4, 2))
    assert arguments.hydra == ["seed=1", "trainer.devices=4", "trainer.num_nodes=2"]
    assert arguments.overrides == ["seed=1"]


def test_devices_against_the_launcher_are_refused_with_the_fix() -> None:
    with pytest.raises(ConfigurationError, match=r"trainer\.devices=1 but the launcher started 2.*set it to 2"):
        parse_arguments(["trainer.devices=1"], world=(2, 1))


@pytest.mark.parametrize("words", [["--allow-target", "mine."], ["--allow-target=mine."]])
def test_allowed_targets_are_taken_off_the_command_line(words: list[str]) -> None:
    arguments = parse_arguments([*words, "seed=1"])
    assert (arguments.allowed_targets, arguments.hydra) == (["mine."], ["seed=1"])


def test_an_allowed_target_without_a_prefix_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs the prefix"):
        parse_arguments(["--allow-target"])


def test_a_switch_may_stand_anywhere() -> None:
    assert parse_arguments(["seed=1", "-m", "model.width=8,16"]).hydra == ["seed=1", "model.width=8,16", "-m"]


def test_words_that_are_added_stand_before_the_flags_which_keep_their_own_words() -> None:
    words = ["budget.tokens=500K", "--cfg", "job", "optimizer.lr=1e-3", "--resolve", "-p", "budget"]
    assert parse_arguments(words).hydra == [
        *("budget.tokens=500K", "optimizer.lr=1e-3", "budget=none"),
        *("--cfg", "job", "--resolve", "-p", "budget"),
    ]


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (["callbacks=early_stopping", "callbacks=validation"], "callbacks=[default,early_stopping]"),
        (["callbacks=[default,push]", "callbacks=[validation,divergence]"], "callbacks=[default,push,divergence]"),
        (["+debug=tiny", "debug=anomaly"], "debug=[tiny,anomaly]"),
        (["callbacks=validation", "callbacks=[default,push]"], None),
        (["debug=tiny", "debug=tiny"], None),
        (["optimizer=adamw", "optimizer=lion"], None),
        (["debug=tiny", "debug=tiny,anomaly", "-m"], None),
    ],
)
def test_a_second_list_of_a_group_drops_no_option_of_the_first(words: list[str], whole: str | None) -> None:
    if whole is None:
        assert parse_arguments(words).overrides == [word for word in words if word != "-m"]
        return
    with pytest.raises(ConfigurationError, match=rf"the last alone would count; all are '{re.escape(whole)}'"):
        parse_arguments(words)


@pytest.mark.parametrize("word", ["cluster=[h100_8x,h200_1x]", "model=[nano, llama_tiny]"])
def test_several_options_of_what_is_one_thing_are_refused(word: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"mixes .*: choose one, nearest valid: (cluster=h100_8x|model=nano)\."
    ):
        parse_arguments([word])
    assert parse_arguments(["callbacks=[default,learning_curve]", "compare=[bytes]"]).added == []


def test_names_that_people_choose_may_be_typed_like_any_key() -> None:
    arguments = parse_arguments(["data=mixture", "data.sources.web.path=x", "data.num_workers=2"])
    assert arguments.hydra == ["data=mixture", "++data.sources.web.path=x", "data.num_workers=2"]


@pytest.mark.parametrize("name", ["1.10", "1e3", "007", "1_000", "True"])
def test_a_name_like_a_number_keeps_its_letters(name: str) -> None:
    assert parse_arguments([f"run.name={name}"]).overrides == [f"run.name='{name}'"]


def test_a_short_key_stands_for_its_whole_one():
    assert parse_arguments(["data.split=tail"]).overrides == ["data.folder.split=tail"]


def test_a_folder_of_options_has_one_way_in():
    with pytest.raises(ConfigurationError, match=r"hydra/sweeper, hydra\.sweeper\.params alone of Hydra's"):
        parse_arguments(["hydra.output_subdir=x"])
    with pytest.raises(ConfigurationError, match=r"hydra\.searchpath is set by --config-dir FOLDER"):
        parse_arguments(["hydra.searchpath=[/nonexistent]"])
