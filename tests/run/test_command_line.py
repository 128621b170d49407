"""From the words of a command to its config, or to each trial's of a sweep."""

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import configs_of, trials_of
from lmtrain.run.compose.search_words import search_of


def test_a_budget_key_alone_replaces_the_default_budget() -> None:
    assert parse_arguments(["budget.steps=20"]).words == ["budget.steps=20", "budget=none"]


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


def test_devices_follow_an_outer_launcher() -> None:
    arguments = parse_arguments(["seed=1"], world=(4, 2))
    assert arguments.words == ["seed=1", "trainer.devices=4", "trainer.num_nodes=2"]
    assert arguments.overrides == ["seed=1"]


def test_devices_against_the_launcher_are_refused_with_the_fix() -> None:
    with pytest.raises(ConfigurationError, match=r"trainer\.devices=1 but the launcher started 2.*set it to 2"):
        parse_arguments(["trainer.devices=1"], world=(2, 1))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--allow-target"], "--allow-target: expected one argument"),
        (["--resolve"], "needs --cfg job"),
        (["--shell-completion"], "unknown flag"),
        (["--config-dri", "x"], "Did you mean '--config-dir'"),
    ],
)
def test_wrong_flags_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_arguments(words)


@pytest.mark.parametrize("name", ["1.10", "1e3", "007", "1_000", "True"])
def test_a_name_like_a_number_keeps_its_letters(name: str) -> None:
    assert parse_arguments([f"run.name={name}"]).overrides == [f"run.name='{name}'"]


def test_a_folder_of_options_has_one_way_in():
    with pytest.raises(ConfigurationError, match=r"hydra/sweeper, hydra\.sweeper\.params are read"):
        parse_arguments(["hydra.output_subdir=x"])
    with pytest.raises(ConfigurationError, match=r"hydra\.searchpath is set by --config-dir FOLDER"):
        parse_arguments(["hydra.searchpath=[/nonexistent]"])


@pytest.mark.parametrize("sweep", [[], ["-m", "seed=1,2"]])
def test_a_setting_that_the_options_file_does_not_name_is_added_to_it(sweep: list[str]) -> None:
    words = [*sweep, "model=gpt2_124m", "model.biases=false", "model.tie_embeddings=false"]
    models = [config["model"] for config, _ in configs_of(parse_arguments(words), config_name="train")]
    found = [(model["biases"], model["tie_embeddings"]) for model in models]
    assert found == [(False, False)] * (2 if sweep else 1)


@pytest.mark.parametrize(
    "words",
    [
        ["seed=1,2", "optimizer=adamw,muon", "optimizer.lr=1e-3"],
        ["seed=range(1,4)", "+a='x, y'", "++b=[1,2],[3]", "c=choice(1,2)", "d=null"],
        ["seed=1"],
    ],
)
def test_trials_are_those_of_hydras_own_sweeper(words: list[str]) -> None:
    parsed = OverridesParser.create().parse_overrides(words)
    assert [trials_of(words, swept={})] == BasicSweeper.split_arguments(parsed, None)


SEARCH = ["-m", "hydra/sweeper=optuna"]


def test_spaces_are_typed_as_hydra_types_them() -> None:
    words = ["a=tag(log,interval(1e-4,1e-2))", "b=int(interval(1,8))", "c=range(2,10,2)", "d=choice(x,4M)", "seed=7"]
    found = search_of(parse_arguments([*SEARCH, *(f"optimizer.{word}" for word in words[:4]), words[4]]))
    assert found is not None
    assert {key: dimension.describe() for key, dimension in found.space.items()} == {
        "optimizer.a": "tag(log,interval(0.0001,0.01))",
        "optimizer.b": "int(interval(1,8))",
        "optimizer.c": "range(2,9,2)",
        "optimizer.d": "x,4M",
    }
    assert found.fixed == ("seed=7",)


def test_an_option_brings_a_space_and_settings_and_typed_words_go_before() -> None:
    found = search_of(parse_arguments(["-m", "hparams_search=optimizer_race", "optimizer=muon,sgd", "sweep.seeds=2"]))
    assert found is not None
    assert (found.space["optimizer"].describe(), found.settings.sampler, found.settings.seeds) == (
        "muon,sgd",
        "grid",
        2,
    )
    assert found.of_trial(["optimizer=sgd"]).overrides == ["optimizer=sgd"], "words of one run, to be typed again"
    ((composed, _),) = configs_of(found.of_trial(["optimizer=sgd"]), config_name="train")
    assert "sweep" not in composed
    assert composed["optimizer"]["_target_"] == "lmtrain.optim.torch_optimizers.sgd"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*SEARCH, "optimizer.lr=interval(1e-3)"], "write optimizer.lr=interval(LOW,HIGH)"),
        ([*SEARCH, "optimizer.lr=interval(1e-3,inf)"], "must be finite"),
        (
            [*SEARCH, "optimizer.lr=interval(1e-3,.inf)"],
            "write optimizer.lr=interval(LOW,HIGH)",
        ),
        ([*SEARCH, "seed=1,2", "sweep.sampler=tp"], "sweep.sampler: must be one of"),
        ([*SEARCH, "seed=1,2", "sweep.seeds=2"], "both choose seeds"),
        (["-m", "hydra/sweeper=ax", "seed=1,2"], "must be basic (a grid) or optuna (a search)"),
    ],
)
def test_what_cannot_be_searched_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        search_of(parse_arguments(words))
    assert message in str(refused.value)
