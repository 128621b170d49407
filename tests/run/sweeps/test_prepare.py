"""A search before its first trial: refusals, its folder, and its number of trials."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.launch.detect import OuterLauncher
from lmtrain.missing_package import install_command
from lmtrain.run.compose.arguments import Arguments, parse_arguments
from lmtrain.run.compose.search_words import SearchWords, search_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps import prepare
from lmtrain.run.sweeps.prepare import (
    PreparedSearch,
    begin_sweep,
    new_sweep,
    num_trials,
    prepare_search,
    sweep_folder,
)
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import ListedValues
from lmtrain.search.study import open_study
from lmtrain.tracking.sweep_file import SweepFile, SweepTrial, TrialState
from tests.configs import config_of, config_with, default_config

SPACE = "optimizer.lr=tag(log,interval(1e-3,1e-1))"


def prepared(root: Path, *words: str, outer: OuterLauncher | None = None) -> PreparedSearch:
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

    return prepare_search(found, make_job, outer=outer, program="python train.py")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=13"], r"optimizer.lr=0.1 is too high. This is trial 2 of 2 (optimizer.lr=0.1); no trial was started."),
        (["resume=never"], "resume=never is for a single run"),
        (["callbacks.validation=null"], "sweep.metric=validation/bits_per_byte needs callbacks.validation"),
        (
            ["sweep.metric=validation/ema_loss"],
            "needs weight_average; set sweep.metric=validation/loss.",
        ),
        (["sweep.metric=validation/code/loss"], "must be one of validation/bits_per_byte, "),
        (["callbacks.graceful_stop=null", "sweep.pruner=median"], "callbacks.graceful_stop, which is switched off"),
        (
            ["callbacks.validation.num_passes=1", "sweep.pruner=median"],
            "callbacks.validation.num_passes=4",
        ),
        (["sweep.max_usd=3"], "sweep.max_usd=3 needs a price"),
        (["sweep.pruner=halving", "sweep.sampler=random", "budget.hours=1"], "needs a budget of steps"),
        (["sweep.pruner=median", "sweep.metric=train/loss"], "sweep.pruner=median judges validations"),
    ],
)
def test_every_refusal_comes_before_the_first_trial(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        prepared(tmp_path, *words)
    assert message in str(refused.value)
    assert [*tmp_path.iterdir()] == []


def test_halvings_rounds_follow_the_validations(tmp_path: Path) -> None:
    assert prepared(tmp_path, "sweep.pruner=halving", "sweep.sampler=random").rounds == [1, 2, 4]
    named = prepared(tmp_path, "run.name=race")
    assert (named.folder, named.rounds) == (tmp_path / "race", [1])


def test_a_search_needs_its_packages_and_no_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentProblem, match="run it once, without torchrun or srun"):
        prepared(tmp_path, outer=OuterLauncher.__new__(OuterLauncher))
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
    new = new_sweep(words, config or default_config(), name="s", command="python train.py -m a=1,2")
    begin_sweep(folder, new, words).save(folder)


def test_more_trials_go_on_with_the_sweep_and_another_space_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    begun(folder, words_of(trials=3))
    begun(folder, words_of(trials=9, parallel=2))
    with pytest.raises(
        ConfigurationError, match=r"is another sweep \(seed=0,1 and here 0,2\); give this one another run"
    ):
        begun(folder, words_of(space="2"))
    with pytest.raises(ConfigurationError, match=r"sweep\.seeds=1 and here 3"):
        begun(folder, words_of(seeds=3))


def test_another_config_is_refused_with_its_keys_named(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    begun(folder, words_of())
    model = default_config().values["model"]
    deeper = config_with(values={**default_config().values, "model": {**model, "num_layers": 97}})
    with pytest.raises(ConfigurationError, match=rf"\(model\.num_layers={model['num_layers']} and here 97\)"):
        begun(folder, words_of(), deeper)
    renamed = config_with(values={**default_config().values, "model": {f"key{index}": index for index in range(9)}})
    with pytest.raises(ConfigurationError, match=r"; [1-9]\d* more\)"):
        begun(folder, words_of(), renamed)


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    begun(folder, words_of())
    text = (folder / "sweep.json").read_text()
    (folder / "sweep.json").write_text(text.replace('"version": 1', '"version": 0'))
    with pytest.raises(DataError, match="another version"):
        begun(folder, words_of())


def test_a_search_killed_before_its_first_trial_goes_on(tmp_path: Path) -> None:
    words = words_of()
    for _ in range(2):
        new = new_sweep(words, default_config(), name="s", command="c")
        sweep = begin_sweep(tmp_path, new, words)
        assert sweep.trials == []
        open_study(tmp_path, words.settings)  # and killed here


def test_a_sweep_is_named_after_its_words_but_not_after_its_limits() -> None:
    one, more, *others = (
        sweep_folder(words_of(*words), default_config()).name
        for words in (["model=a"], ["model=a", "sweep.trials=9"], ["model=b"], ["model=a", "sweep.seeds=2"])
    )
    assert one == more
    assert len({one, *others}) == 3, "sweep.seed is free, sweep.seeds is not"
    named = replace(default_config().run, name="race")
    assert sweep_folder(words_of(), config_with(run=named)).name == "race"


OPEN: Sequence[tuple[TrialState, int]] = [("paused", 1), ("waiting", 0), ("diverged", 0)]
OVER: Sequence[tuple[TrialState, int]] = [("waiting", 1), ("pruned", 1)]


def halving(root: Path, trials: int, *words: str) -> Any:
    asked = [f"sweep.trials={trials}", "sweep.sampler=random", "sweep.pruner=halving", "run.name=race"]
    return prepared(root, *asked, *words)


def halved(root: Path, states: Sequence[tuple[TrialState, int]], *, trials: int) -> SweepFile:
    search = halving(root, trials)
    sweep = new_sweep(search.words, search.base.config, name="race", command="c")
    sweep.trials = [
        SweepTrial(number=number, values={}, state=state, rounds=rounds)
        for number, (state, rounds) in enumerate(states)
    ]
    sweep.save(root / "race")
    return sweep


class Begun(Exception):
    """The search goes on."""


@pytest.fixture
def _no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object) -> None:
        raise Begun

    monkeypatch.setattr(prepare, "open_study", begin)


@pytest.mark.usefixtures("_no_study")
def test_halving_has_no_more_trials_once_its_first_round_is_over(tmp_path: Path) -> None:
    (tmp_path / "race").mkdir()
    halved(tmp_path, OVER, trials=2)
    before = (tmp_path / "race/sweep.json").read_bytes()
    refusal = r"^sweep\.trials=6 .* after its first round of 2; set sweep\.trials=2 to continue"
    with pytest.raises(ConfigurationError, match=refusal):
        halving(tmp_path, 6).run()
    assert (tmp_path / "race/sweep.json").read_bytes() == before
    for trials in (1, 2):
        with pytest.raises(Begun):
            halving(tmp_path, trials, "sweep.parallel=2").run()


@pytest.mark.usefixtures("_no_study")
def test_the_first_round_takes_more_trials(tmp_path: Path) -> None:
    (tmp_path / "race").mkdir()
    sweep = halved(tmp_path, OPEN, trials=3)
    search = halving(tmp_path, 6)
    with pytest.raises(Begun):
        search.run()
    assert num_trials(search.words, sweep) == 6
