import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.compose import for_each_config
from lmtrain.run.compose.search_words import search_of

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


@pytest.mark.parametrize(
    ("word", "described"),
    [
        ("range(1,3.5)", "int(interval(1,3))"),
        ("range(3,0,-1)", "int(interval(1,3))"),
        ("range(9,1,-4)", "range(5,10,4)"),
    ],
)
def test_a_range_has_the_whole_numbers_that_hydra_lists(word: str, described: str) -> None:
    found = search_of(parse_arguments([*SEARCH, f"seed={word}"]))
    assert found is not None
    assert found.space["seed"].describe() == described


def test_an_option_brings_a_space_and_settings_and_typed_words_go_before() -> None:
    found = search_of(parse_arguments(["-m", "hparams_search=optimizer_race", "optimizer=muon,sgd", "sweep.seeds=2"]))
    assert found is not None
    assert (found.space["optimizer"].describe(), found.settings.sampler, found.settings.seeds) == (
        "muon,sgd",
        "grid",
        2,
    )
    assert found.of_trial(["optimizer=sgd"]).overrides == ["optimizer=sgd"], "words of one run, to be typed again"
    composed: list[dict] = []
    for_each_config(lambda *one: composed.append(one[0]), found.of_trial(["optimizer=sgd"]), config_name="train")
    assert "sweep" not in composed[0]
    assert composed[0]["optimizer"]["_target_"] == "lmtrain.optim.sgd.sgd"


def test_a_grid_is_no_search() -> None:
    assert search_of(parse_arguments(["-m", "seed=1,2"])) is None
    assert search_of(parse_arguments(["seed=1"])) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*SEARCH, "optimizer.lr=interval(1e-3)"], "optimizer.lr=interval(1e-3): missing a required argument: 'end'"),
        ([*SEARCH, "optimizer.lr=interval(1e-3,inf)"], "has no bound"),
        (
            [*SEARCH, "optimizer.lr=interval(1e-3,.inf)"],
            "lr=interval(1e-3,.inf): its end is no finite number, as optimizer.lr=interval(LOW,HIGH)",
        ),
        ([*SEARCH, "seed=1,2", "sweep.sampler=tp"], "sweep.sampler=tp is none of"),
        ([*SEARCH, "seed=1,2", "sweep.seeds=2"], "both choose seeds"),
        ([*SEARCH, "optimizer=muon,muon"], "has a value twice"),
        (["-m", "hydra/sweeper=ax", "seed=1,2"], "hydra/sweeper=ax: there is basic, a grid, and optuna, a search."),
    ],
)
def test_what_cannot_be_searched_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        search_of(parse_arguments(words))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hparams_search=depth"], "hydra/sweeper=optuna searches for values: lmtrain train with -m starts it."),
        (
            ["sweep.trials=3"],
            "sweep.trials=3 is of a search (of a grid, -m alone, are sweep.parallel, sweep.launcher and sweep.slurm); "
            "add hydra/sweeper=optuna and -m, or leave it out.",
        ),
    ],
)
def test_a_search_without_m_and_settings_without_a_search_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        for_each_config(lambda *one: None, parse_arguments(words), config_name="train")
    assert str(refused.value) == message


def test_parameters_of_slurm_are_typed_as_a_mapping() -> None:
    words = ["-m", "hydra/sweeper=optuna", "optimizer.lr=interval(1e-3,1e-1)", "sweep.launcher=slurm"]
    found = search_of(parse_arguments([*words, "sweep.slurm={slurm_partition: gpu, timeout_min: 60}"]))
    assert found is not None
    assert found.settings.slurm == {"slurm_partition": "gpu", "timeout_min": 60}
