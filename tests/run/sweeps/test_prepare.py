"""A search before its first trial: refusals, its folder, and its number of trials."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.missing_package import install_command
from lmtrain.run.compose.arguments import Arguments, parse_arguments
from lmtrain.run.compose.search_words import SearchWords, search_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.search import (
    begin_sweep,
    run_search,
    sweep_folder,
)
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import ListedValues
from tests.configs import config_of, config_with, default_config

SPACE = "optimizer.lr=tag(log,interval(1e-3,1e-1))"


def prepared(root: Path, *words: str) -> int:
    base = ["tokenizer=byte_level", "logger=none", f"run.root={root}", "cluster.peak_flops=1e12"]
    found = search_of(parse_arguments(["-m", "hydra/sweeper=optuna", SPACE, *base, *words]))
    assert isinstance(found, SearchWords)

    def make_job(arguments) -> Job:
        config = config_of(*arguments.words)
        if config.optimizer.get("lr") == 0.1 and "seed=13" in words:
            raise ConfigurationError("optimizer.lr=0.1 is too high.")
        return Job(
            config=config, overrides=arguments.overrides, name="", root=str(root), config_dir=arguments.config_dir
        )

    return run_search(found, make_job, program="python train.py", tell=lambda folder: None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=13"], r"optimizer.lr=0.1 is too high. This is trial 2 of 2 (optimizer.lr=0.1); no trial was started."),
        (["resume=never"], "resume=never is for a single run"),
        (["callbacks.validation=null"], "sweep.metric=validation/bits_per_byte needs callbacks.validation"),
        (
            ["sweep.metric=validation/ema_loss"],
            "sweep.metric: must be one of validation/bits_per_byte, ",
        ),
        (["sweep.metric=validation/code/loss"], "must be one of validation/bits_per_byte, "),
        (["callbacks.graceful_stop=null", "sweep.pruner=median"], "callbacks.graceful_stop, which is switched off"),
        (
            ["callbacks.validation.num_passes=1", "sweep.pruner=median"],
            "callbacks.validation.num_passes=4",
        ),
        (["sweep.pruner=median", "sweep.metric=train/loss"], "sweep.pruner=median judges validations"),
    ],
)
def test_every_refusal_comes_before_the_first_trial(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        prepared(tmp_path, *words)
    assert message in str(refused.value)
    assert [*tmp_path.iterdir()] == []


def test_a_search_needs_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        EnvironmentProblem, match=re.escape(f"needs the package optuna: {install_command('sweep', 'optuna')}")
    ):
        prepared(tmp_path)


def words_of(*words: str, space: str = "1", **settings: object) -> SearchWords:
    return SearchWords(
        settings=SearchSettings(**settings),
        space={"seed": ListedValues(values=("0", space))},
        fixed=tuple(words),
        arguments=Arguments(overrides=[*words]),
    )


def begun(folder: Path, words: SearchWords, config: RunConfig | None = None) -> None:
    folder.mkdir(exist_ok=True)
    begin_sweep(folder, words, config or default_config(), name="s", command="python train.py -m a=1,2")


def test_more_trials_go_on_with_the_sweep_and_another_space_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    begun(folder, words_of(trials=3))
    begun(folder, words_of(trials=9, parallel=2))
    with pytest.raises(
        ConfigurationError, match=r"is another sweep; give this one another run\.name.*python train\.py -m a=1,2"
    ):
        begun(folder, words_of(space="2"))
    with pytest.raises(ConfigurationError, match="is another sweep"):
        begun(folder, words_of(seeds=3))


def test_another_config_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    begun(folder, words_of())
    model = default_config().values["model"]
    deeper = config_with(values={**default_config().values, "model": {**model, "num_layers": 97}})
    with pytest.raises(ConfigurationError, match="is another sweep"):
        begun(folder, words_of(), deeper)


def test_a_sweep_is_named_after_its_words_but_not_after_its_limits() -> None:
    one, more, *others = (
        sweep_folder(words_of(*words), default_config()).name
        for words in (["model=a"], ["model=a", "sweep.trials=9"], ["model=b"], ["model=a", "sweep.seeds=2"])
    )
    assert one == more
    assert len({one, *others}) == 3, "sweep.seed is free, sweep.seeds is not"
    named = replace(default_config().run, name="race")
    assert sweep_folder(words_of(), config_with(run=named)).name == "race"
